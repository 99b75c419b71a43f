//! What does the proxy answer by itself? Pure functions from what it knows to a reply.
