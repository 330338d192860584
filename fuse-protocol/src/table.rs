//! The macros that define numbers and structures, and the tables that they fill.
//!
//! Everything of the kernel's header that this crate knows passes through one of these
//! macros, so a row of the tables cannot be forgotten. `tests/header.rs` compares the
//! tables with the header of the machine.

/// A number of the kernel's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Constant {
    /// Its name in C.
    pub name: &'static str,
    /// Its value.
    pub value: u64,
    /// The first minor version whose header surely has it; [`FLOOR`] for all that are older.
    pub since: u32,
}

/// A structure of the kernel's header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Struct {
    /// Its name in C, without `struct`.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// See [`Constant::since`].
    pub since: u32,
    /// Its fields, in order and without gaps.
    pub fields: &'static [Field],
}

/// A field of a [`Struct`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// Its name in C.
    pub name: &'static str,
    /// Where it begins.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
    /// See [`Constant::since`].
    pub since: u32,
}

/// The minor version whose header has all that is not marked with a later one.
pub const FLOOR: u32 = 38;

macro_rules! since {
    () => {
        $crate::table::FLOOR
    };
    ($minor:literal) => {
        $minor
    };
}

macro_rules! c_name {
    ($field:ident) => {
        stringify!($field)
    };
    ($field:ident $name:literal) => {
        $name
    };
}

/// Defines sets of flags. A value keeps bits that have no name here.
macro_rules! wire_flags {
    ($( $(#[$doc:meta])* $Name:ident: $bits:ty {
        $( $(#[$($flag_doc:tt)*])* $flag:ident = $c:literal, $bit:literal $(, $since:literal)?; )*
    } )*) => {
        $(
            $(#[$doc])*
            #[derive(
                Clone, Copy, Default, PartialEq, Eq, Hash,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
                zerocopy::KnownLayout,
            )]
            #[repr(transparent)]
            pub struct $Name($bits);

            bitflags::bitflags! {
                impl $Name: $bits {
                    $( $(#[$($flag_doc)*])* const $flag = 1 << $bit; )*
                }
            }

            impl std::fmt::Debug for $Name {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    if self.is_empty() {
                        return f.write_str("empty");
                    }
                    bitflags::parser::to_writer(self, f)
                }
            }
        )*

        /// The numbers of this module.
        pub(crate) const CONSTANTS: &[$crate::table::Constant] = &[
            $($( $crate::table::Constant {
                name: $c,
                value: 1 << $bit,
                since: since!($($since)?),
            }, )*)*
        ];
    };
}

/// Defines an enumeration of numbers with its conversions.
macro_rules! wire_enum {
    ($(#[$doc:meta])* $Name:ident: $repr:ident {
        $( $(#[$item_doc:meta])* $item:ident = $c:literal, $value:literal $(, $since:literal)?; )*
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr($repr)]
        pub enum $Name {
            $( $(#[$item_doc])* $item = $value, )*
        }

        impl $Name {
            /// All of them, in the order of their numbers.
            pub const ALL: &[$Name] = &[$( $Name::$item, )*];

            /// Its number.
            #[must_use]
            pub const fn number(self) -> $repr {
                self as $repr
            }

            /// Its name in the kernel's header.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $( $Name::$item => $c, )*
                }
            }
        }

        impl TryFrom<$repr> for $Name {
            type Error = $repr;

            /// Returns the number itself if it is unknown.
            fn try_from(number: $repr) -> Result<$Name, $repr> {
                match number {
                    $( $value => Ok($Name::$item), )*
                    other => Err(other),
                }
            }
        }

        /// The numbers of this module.
        pub(crate) const CONSTANTS: &[$crate::table::Constant] = &[
            $( $crate::table::Constant {
                name: $c,
                value: $value,
                since: since!($($since)?),
            }, )*
        ];
    };
}

/// Defines single numbers.
macro_rules! wire_numbers {
    ($( $(#[$doc:meta])* $name:ident: $ty:ty = $c:literal, $value:expr $(, $since:literal)?; )*) => {
        $( $(#[$doc])* pub const $name: $ty = $value; )*

        /// The numbers of this module.
        pub(crate) const CONSTANTS: &[$crate::table::Constant] = &[
            $( $crate::table::Constant {
                name: $c,
                value: $name as u64,
                since: since!($($since)?),
            }, )*
        ];
    };
}

/// Defines structures. The compiler refuses a structure with gaps (`IntoBytes`).
macro_rules! wire_structs {
    ($( $(#[$doc:meta])* $Name:ident = $c:literal $([$since:literal])? {
        $(
            $(#[$field_doc:meta])*
            $field:ident $(= $field_c:literal)? : $ty:ty $([$field_since:literal])? ;
        )*
    } )*) => {
        $(
            $(#[$doc])*
            #[derive(
                Clone, Copy, Debug, PartialEq, Eq,
                zerocopy::FromBytes, zerocopy::IntoBytes, zerocopy::Immutable,
                zerocopy::KnownLayout,
            )]
            #[repr(C)]
            pub struct $Name {
                $(
                    #[doc = concat!("The field `", c_name!($field $($field_c)?), "`.")]
                    $(#[$field_doc])*
                    pub $field: $ty,
                )*
            }

            impl $Name {
                /// Its size in bytes.
                pub const SIZE: usize = size_of::<$Name>();
            }

            impl Default for $Name {
                /// All zeros.
                fn default() -> $Name {
                    zerocopy::FromZeros::new_zeroed()
                }
            }
        )*

        /// The structures of this module.
        pub(crate) const STRUCTS: &[$crate::table::Struct] = &[
            $( $crate::table::Struct {
                name: $c,
                size: size_of::<$Name>(),
                since: since!($($since)?),
                fields: &[
                    $( $crate::table::Field {
                        name: c_name!($field $($field_c)?),
                        offset: std::mem::offset_of!($Name, $field),
                        size: size_of::<$ty>(),
                        since: since!($($field_since)?),
                    }, )*
                ],
            }, )*
        ];
    };
}
