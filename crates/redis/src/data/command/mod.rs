//! What is known of each command: where its keys are, whether it writes, what a cluster does with it.
