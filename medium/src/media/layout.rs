//! `layout!`: a structure, its offsets and its documentation table from one list.

/// One field of a structure on the medium.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Offset from the start of the structure, bytes.
    pub offset: usize,
    /// Size, bytes.
    pub size: usize,
    /// Name in the code.
    pub name: &'static str,
    /// Type in the code.
    pub ty: &'static str,
    /// What it holds.
    pub doc: &'static str,
}

/// A structure on the medium.
#[derive(Debug, Clone)]
pub struct Table {
    /// Name in the code.
    pub name: &'static str,
    /// Size, bytes.
    pub size: usize,
    /// Fields in ascending order of offset.
    pub fields: Vec<Field>,
}

impl Table {
    /// Returns the table as Markdown, byte for byte as in `docs/format.md`.
    pub fn markdown(&self) -> String {
        let mut s = format!(
            "`{}`, {} bytes\n\n| offset | size | field | type | meaning |\n|---|---|---|---|---|\n",
            self.name, self.size
        );
        for f in &self.fields {
            s += &format!(
                "| {:#05x} | {} | `{}` | `{}` | {} |\n",
                f.offset, f.size, f.name, f.ty, f.doc
            );
        }
        s
    }
}

/// Declares a structure of the medium with explicit offsets. A wrong offset, a
/// forgotten field or hidden padding is a compile error.
#[macro_export]
macro_rules! layout {
    ($(#[$meta:meta])* pub struct $name:ident : $size:literal {
        $($off:literal $field:ident : $ty:ty = $doc:literal,)*
    }) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, zerocopy::FromBytes, zerocopy::IntoBytes,
            zerocopy::Immutable, zerocopy::KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $(#[doc = $doc] pub $field: $ty,)*
        }
        const _: () = {
            assert!(size_of::<$name>() == $size);
            $(assert!(core::mem::offset_of!($name, $field) == $off);)*
        };
        impl $name {
            /// Size on the medium, bytes.
            pub const SIZE: usize = $size;
            /// Returns the table of the structure, field by field.
            pub fn table() -> $crate::media::layout::Table {
                $crate::media::layout::Table {
                    name: stringify!($name),
                    size: $size,
                    fields: vec![$($crate::media::layout::Field {
                        offset: $off,
                        size: size_of::<$ty>(),
                        name: stringify!($field),
                        ty: stringify!($ty),
                        doc: $doc,
                    },)*],
                }
            }
        }
        impl Default for $name {
            fn default() -> Self {
                <$name as zerocopy::FromZeros>::new_zeroed()
            }
        }
    };
}
