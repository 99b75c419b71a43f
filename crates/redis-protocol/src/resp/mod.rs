//! RESP2 and RESP3: finding the end of a frame, reading its parts, writing replies.
//!
//! Nothing here builds a tree of values. A request is the positions of its arguments in the receive buffer
//! ([`RequestParser`]); a reply is the position of its end ([`ReplyScanner`]) and, where its content matters,
//! a borrowed view of one level ([`View`]).

mod code;
mod inline;
mod number;
mod reply;
mod request;
#[cfg(test)]
mod tests;
mod view;
mod write;

pub use code::ErrorCode;
pub use number::decimal;
pub use reply::{BadReply, Form, ReplyScanner};
pub use request::{Arguments, Limits, Parsed, ProtocolError, Request, RequestParser, Span, Trust};
pub use view::{Children, View};
pub use write::{Protocol, Writer, write_request};
