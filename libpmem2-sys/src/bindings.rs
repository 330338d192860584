/* Types and constants that rust-bindgen 0.73.2 generated; lib.rs says how. */

pub const PMEM2_E_UNKNOWN: i32 = -100000;
pub const PMEM2_E_NOSUPP: i32 = -100001;
pub const PMEM2_E_FILE_HANDLE_NOT_SET: i32 = -100003;
pub const PMEM2_E_INVALID_FILE_HANDLE: i32 = -100004;
pub const PMEM2_E_INVALID_FILE_TYPE: i32 = -100005;
pub const PMEM2_E_MAP_RANGE: i32 = -100006;
pub const PMEM2_E_MAPPING_EXISTS: i32 = -100007;
pub const PMEM2_E_GRANULARITY_NOT_SET: i32 = -100008;
pub const PMEM2_E_GRANULARITY_NOT_SUPPORTED: i32 = -100009;
pub const PMEM2_E_OFFSET_OUT_OF_RANGE: i32 = -100010;
pub const PMEM2_E_OFFSET_UNALIGNED: i32 = -100011;
pub const PMEM2_E_INVALID_ALIGNMENT_FORMAT: i32 = -100012;
pub const PMEM2_E_INVALID_ALIGNMENT_VALUE: i32 = -100013;
pub const PMEM2_E_INVALID_SIZE_FORMAT: i32 = -100014;
pub const PMEM2_E_LENGTH_UNALIGNED: i32 = -100015;
pub const PMEM2_E_MAPPING_NOT_FOUND: i32 = -100016;
pub const PMEM2_E_BUFFER_TOO_SMALL: i32 = -100017;
pub const PMEM2_E_SOURCE_EMPTY: i32 = -100018;
pub const PMEM2_E_INVALID_SHARING_VALUE: i32 = -100019;
pub const PMEM2_E_SRC_DEVDAX_PRIVATE: i32 = -100020;
pub const PMEM2_E_INVALID_ADDRESS_REQUEST_TYPE: i32 = -100021;
pub const PMEM2_E_ADDRESS_UNALIGNED: i32 = -100022;
pub const PMEM2_E_ADDRESS_NULL: i32 = -100023;
pub const PMEM2_E_DEEP_FLUSH_RANGE: i32 = -100024;
pub const PMEM2_E_INVALID_REGION_FORMAT: i32 = -100025;
pub const PMEM2_E_DAX_REGION_NOT_FOUND: i32 = -100026;
pub const PMEM2_E_INVALID_DEV_FORMAT: i32 = -100027;
pub const PMEM2_E_CANNOT_READ_BOUNDS: i32 = -100028;
pub const PMEM2_E_NO_BAD_BLOCK_FOUND: i32 = -100029;
pub const PMEM2_E_LENGTH_OUT_OF_RANGE: i32 = -100030;
pub const PMEM2_E_INVALID_PROT_FLAG: i32 = -100031;
pub const PMEM2_E_NO_ACCESS: i32 = -100032;
pub const PMEM2_E_VM_RESERVATION_NOT_EMPTY: i32 = -100033;
pub const PMEM2_E_MAP_EXISTS: i32 = -100034;
pub const PMEM2_E_FILE_DESCRIPTOR_NOT_SET: i32 = -100035;
pub const PMEM2_E_SOURCE_TYPE_NOT_SUPPORTED: i32 = -100036;
pub const PMEM2_E_IO_FAIL: i32 = -100037;
pub const PMEM2_PROT_EXEC: u32 = 536870912;
pub const PMEM2_PROT_READ: u32 = 1073741824;
pub const PMEM2_PROT_WRITE: u32 = 2147483648;
pub const PMEM2_PROT_NONE: u32 = 0;
pub const PMEM2_F_MEM_NODRAIN: u32 = 1;
pub const PMEM2_F_MEM_NONTEMPORAL: u32 = 2;
pub const PMEM2_F_MEM_TEMPORAL: u32 = 4;
pub const PMEM2_F_MEM_WC: u32 = 8;
pub const PMEM2_F_MEM_WB: u32 = 16;
pub const PMEM2_F_MEM_NOFLUSH: u32 = 32;
pub const PMEM2_F_MEM_VALID_FLAGS: u32 = 63;
#[repr(C)]
#[derive(Debug)]
pub struct pmem2_source {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct pmem2_map {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug)]
pub struct pmem2_config {
    _unused: [u8; 0],
}
pub const PMEM2_GRANULARITY_BYTE: pmem2_granularity = 0;
pub const PMEM2_GRANULARITY_CACHE_LINE: pmem2_granularity = 1;
pub const PMEM2_GRANULARITY_PAGE: pmem2_granularity = 2;
pub type pmem2_granularity = ::core::ffi::c_uint;
pub const PMEM2_SHARED: pmem2_sharing_type = 0;
pub const PMEM2_PRIVATE: pmem2_sharing_type = 1;
pub type pmem2_sharing_type = ::core::ffi::c_uint;
pub type pmem2_flush_fn =
    ::core::option::Option<unsafe extern "C" fn(ptr: *const ::core::ffi::c_void, size: usize)>;
pub type pmem2_drain_fn = ::core::option::Option<unsafe extern "C" fn()>;
pub type pmem2_memcpy_fn = ::core::option::Option<
    unsafe extern "C" fn(
        pmemdest: *mut ::core::ffi::c_void,
        src: *const ::core::ffi::c_void,
        len: usize,
        flags: ::core::ffi::c_uint,
    ) -> *mut ::core::ffi::c_void,
>;
pub type pmem2_memset_fn = ::core::option::Option<
    unsafe extern "C" fn(
        pmemdest: *mut ::core::ffi::c_void,
        c: ::core::ffi::c_int,
        len: usize,
        flags: ::core::ffi::c_uint,
    ) -> *mut ::core::ffi::c_void,
>;
