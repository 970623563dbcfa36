"""Reading a log: the view that its segment files add up to, and its entries, checked and in bounded memory."""
