"""Block stores with index and objects, filled, and the engines and shapes that they are compared by."""
