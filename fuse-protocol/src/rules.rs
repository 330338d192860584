//! What a connection has agreed upon about the form of its requests.

/// What a request must keep to. [`Negotiated::rules`](crate::Negotiated::rules) makes it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Most bytes of a request, with its headers.
    pub max_request: usize,
    /// Most bytes that a reply may bring beside its headers. A request that asks for more
    /// is refused, so no caller needs to fear the size that it reads in a request.
    pub max_reply: u32,
    /// Most bytes of a name, without the NUL.
    pub name_max: usize,
    /// Most bytes of a symbolic link's target, without the NUL.
    pub target_max: usize,
    /// SETXATTR has the longer header.
    pub setxattr_ext: bool,
    /// Requests that make a node may bring security contexts.
    pub security_contexts: bool,
    /// Requests that make a node may bring supplementary groups.
    pub supplementary_groups: bool,
}

/// Most bytes of the name of an extended attribute, on every Linux.
pub const XATTR_NAME_MAX: usize = 255;

/// Most bytes of the value of an extended attribute, on every Linux.
pub const XATTR_VALUE_MAX: u32 = 65536;

impl Rules {
    /// What holds before INIT is answered. Only INIT comes then.
    pub const BEFORE_INIT: Rules = Rules {
        max_request: 4096,
        max_reply: 4096,
        name_max: 255,
        target_max: 4095,
        setxattr_ext: false,
        security_contexts: false,
        supplementary_groups: false,
    };
}
