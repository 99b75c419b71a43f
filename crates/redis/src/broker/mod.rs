//! The operations on clusters and hosts, each on the keys of the documents, in guarded transactions.
