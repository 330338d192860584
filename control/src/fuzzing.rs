//! The decoders of both ends, for the fuzz target `control`.

use crate::error::ControlError;
use crate::message::{self, Reply, Request};

/// Decodes what a server receives, or returns the reply that refuses it.
///
/// # Errors
/// The reply.
pub fn request(bytes: &[u8]) -> Result<Request, Reply> {
    message::request(bytes)
}

/// Decodes what a client receives.
///
/// # Errors
/// [`ControlError::Malformed`], [`ControlError::Version`].
pub fn reply(bytes: &[u8]) -> Result<Reply, ControlError> {
    message::reply(bytes)
}

/// Encodes a request.
///
/// # Errors
/// [`ControlError::Malformed`] if it is too long.
pub fn encode_request(request: &Request) -> Result<Vec<u8>, ControlError> {
    message::encode(request)
}

/// Encodes a reply.
///
/// # Errors
/// [`ControlError::Malformed`] if it is too long.
pub fn encode_reply(reply: &Reply) -> Result<Vec<u8>, ControlError> {
    message::encode(reply)
}
