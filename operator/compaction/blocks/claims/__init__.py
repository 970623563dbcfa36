"""Who holds the open jobs of a block store: claims with signs of life, and strays that others left behind."""
