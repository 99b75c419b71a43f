//! RESP2 and RESP3: finding the end of a frame, reading its parts, writing replies.
