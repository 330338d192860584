//! Reads the body of a request, part by part, and never past its end.

use zerocopy::FromBytes;

use crate::data::Data;
use crate::error::RequestError;
use crate::opcode::Opcode;

type Read<T> = Result<T, RequestError>;

/// What is left of a request: first of the operation's header, then of the payload.
///
/// A request in one piece has all in `payload`. Where a transport splits the two, a
/// structure lies in the header as a whole or in the payload as a whole, because the
/// kernel sends each as one argument.
#[derive(Debug)]
pub(crate) struct Reader<'a> {
    op: Opcode,
    head: &'a [u8],
    payload: Data<'a>,
}

impl<'a> Reader<'a> {
    pub(crate) fn new(op: Opcode, head: &'a [u8], payload: Data<'a>) -> Reader<'a> {
        Reader { op, head, payload }
    }

    /// Takes a structure.
    pub(crate) fn take<T: FromBytes>(&mut self) -> Read<T> {
        let (value, _) = T::read_from_prefix(self.bytes(size_of::<T>(), "header")?)
            .map_err(|_| RequestError::Truncated(self.op, "header"))?;
        Ok(value)
    }

    /// Takes some bytes that lie in one piece.
    pub(crate) fn bytes(&mut self, n: usize, what: &'static str) -> Read<&'a [u8]> {
        let truncated = RequestError::Truncated(self.op, what);
        if !self.head.is_empty() {
            let (taken, rest) = self.head.split_at_checked(n).ok_or(truncated)?;
            self.head = rest;
            return Ok(taken);
        }
        let payload = self.contiguous(what)?;
        let (taken, rest) = payload.split_at_checked(n).ok_or(truncated)?;
        self.payload = Data::Whole(rest);
        Ok(taken)
    }

    /// Takes all bytes before the next NUL, and the NUL.
    pub(crate) fn until_nul(&mut self, what: &'static str) -> Read<&'a [u8]> {
        let truncated = RequestError::Truncated(self.op, what);
        let (part, in_head) = if self.head.is_empty() {
            (self.contiguous(what)?, false)
        } else {
            (self.head, true)
        };
        let end = part.iter().position(|b| *b == 0).ok_or(truncated)?;
        let (taken, rest) = part.split_at_checked(end).ok_or(truncated)?;
        let rest = rest.get(1..).unwrap_or_default();
        if in_head {
            self.head = rest;
        } else {
            self.payload = Data::Whole(rest);
        }
        Ok(taken)
    }

    /// Takes the last `n` bytes of the payload.
    pub(crate) fn split_end(&mut self, n: usize, what: &'static str) -> Read<&'a [u8]> {
        if n == 0 {
            return Ok(&[]);
        }
        let truncated = RequestError::Truncated(self.op, what);
        let payload = self.contiguous(what)?;
        let begin = payload.len().checked_sub(n).ok_or(truncated)?;
        let (rest, taken) = payload.split_at_checked(begin).ok_or(truncated)?;
        self.payload = Data::Whole(rest);
        Ok(taken)
    }

    /// Takes the rest, which may lie in pieces and must have as many bytes as announced.
    pub(crate) fn data(&mut self, announced: u32) -> Read<Data<'a>> {
        let found = self.left() as u64;
        if found != u64::from(announced) {
            return Err(RequestError::Announced(self.op, announced.into(), found));
        }
        if self.head.is_empty() {
            return Ok(std::mem::replace(&mut self.payload, Data::EMPTY));
        }
        if self.payload.is_empty() {
            return Ok(Data::Whole(std::mem::take(&mut self.head)));
        }
        Err(RequestError::Scattered(self.op, "data"))
    }

    /// Takes the rest: `count` structures of `size` bytes in one piece.
    pub(crate) fn list(&mut self, count: u32, size: usize) -> Read<&'a [u8]> {
        let announced = u64::from(count).saturating_mul(size as u64);
        let found = self.left();
        if announced != found as u64 {
            return Err(RequestError::Announced(self.op, announced, found as u64));
        }
        self.bytes(found, "list")
    }

    /// Checks that nothing is left.
    pub(crate) fn end(&self) -> Read<()> {
        match self.left() {
            0 => Ok(()),
            n => Err(RequestError::Trailing(self.op, n)),
        }
    }

    /// Bytes that are left.
    pub(crate) fn left(&self) -> usize {
        self.head.len().saturating_add(self.payload.len())
    }

    fn contiguous(&self, what: &'static str) -> Read<&'a [u8]> {
        let whole = self.payload.as_slice();
        whole.ok_or(RequestError::Scattered(self.op, what))
    }
}
