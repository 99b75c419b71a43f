//! May a command for a moving range pass? The gate between the data path and a move.
