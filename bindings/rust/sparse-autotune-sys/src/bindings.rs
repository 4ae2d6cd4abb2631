// Made from sparse_autotune.h: see tests/declarations.rs.

pub type sat_status = ::core::ffi::c_uint;
pub type sat_dtype = ::core::ffi::c_uint;
pub type sat_index_type = ::core::ffi::c_uint;
pub type sat_operation = ::core::ffi::c_uint;
pub type sat_transpose = ::core::ffi::c_uint;
pub type sat_activation = ::core::ffi::c_uint;
pub type sat_bias = ::core::ffi::c_uint;
pub type sat_effort = ::core::ffi::c_uint;
pub type sat_measure = ::core::ffi::c_uint;
pub type _bindgen_ty_1 = ::core::ffi::c_uint;
pub type sat_backend_kind = ::core::ffi::c_uint;
pub type _bindgen_ty_2 = ::core::ffi::c_uint;
pub type sat_log_level = ::core::ffi::c_uint;
pub type sat_log_fn = ::core::option::Option<
    unsafe extern "C" fn(
        user: *mut ::core::ffi::c_void,
        level: sat_log_level,
        message: *const ::core::ffi::c_char,
    ),
>;
pub type _bindgen_ty_3 = ::core::ffi::c_uint;
pub type sat_verdict = ::core::ffi::c_uint;
pub type _bindgen_ty_4 = ::core::ffi::c_uint;
pub type sat_plugin_fn = ::core::option::Option<
    unsafe extern "C" fn(context: *mut sat_context) -> sat_status,
>;
pub type sat_cache_visit_fn = ::core::option::Option<
    unsafe extern "C" fn(
        user: *mut ::core::ffi::c_void,
        key: *const ::core::ffi::c_char,
        text: *const ::core::ffi::c_char,
    ) -> bool,
>;
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_device {
    pub size: usize,
    pub backend: sat_backend_kind,
    pub index: ::core::ffi::c_int,
    pub name: [::core::ffi::c_char; 128usize],
    pub identity: [::core::ffi::c_char; 192usize],
    pub isa: u32,
    pub threads: ::core::ffi::c_int,
    pub multiprocessors: ::core::ffi::c_int,
    pub capability: ::core::ffi::c_int,
    pub l1_bytes: i64,
    pub l2_bytes: i64,
    pub l3_bytes: i64,
    pub memory_bytes: i64,
    pub memory_rate: f64,
    pub flop_rate: [f64; 32usize],
    pub l2_rate: f64,
    pub tf32_rate: f64,
    pub measured: bool,
    pub shared_bytes: i64,
    pub driver: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_context {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_allocator {
    pub size: usize,
    pub alloc: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            bytes: usize,
            alignment: usize,
        ) -> *mut ::core::ffi::c_void,
    >,
    pub free: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            pointer: *mut ::core::ffi::c_void,
        ),
    >,
    pub user: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_context_options {
    pub size: usize,
    pub device: *const ::core::ffi::c_char,
    pub cache_dir: *const ::core::ffi::c_char,
    pub effort: sat_effort,
    pub measure: sat_measure,
    pub threads: ::core::ffi::c_int,
    pub multiprocessors: ::core::ffi::c_int,
    pub background: bool,
    pub budget_seconds: f64,
    pub memory_limit: usize,
    pub allocator: *const sat_allocator,
    pub log: sat_log_fn,
    pub log_user: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_agreement {
    pub size: usize,
    pub rank: ::core::ffi::c_int,
    pub world: ::core::ffi::c_int,
    pub wait_seconds: f64,
    pub get: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            key: *const ::core::ffi::c_char,
            seconds: f64,
            value: *mut ::core::ffi::c_char,
        ) -> sat_status,
    >,
    pub put: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            key: *const ::core::ffi::c_char,
            desired: *const ::core::ffi::c_char,
            value: *mut ::core::ffi::c_char,
        ) -> sat_status,
    >,
    pub user: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_bsr {
    pub size: usize,
    pub rows: i64,
    pub cols: i64,
    pub block_rows: i64,
    pub block_cols: i64,
    pub stored_blocks: i64,
    pub index_type: sat_index_type,
    pub row_ptr: *const ::core::ffi::c_void,
    pub col_idx: *const ::core::ffi::c_void,
    pub sequences: i64,
    pub q_offsets: *const i64,
    pub kv_offsets: *const i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_pattern {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_dynamic_bsr {
    pub size: usize,
    pub rows: i64,
    pub cols: i64,
    pub block_rows: i64,
    pub block_cols: i64,
    pub capacity: i64,
    pub index_type: sat_index_type,
    pub row_ptr: *const ::core::ffi::c_void,
    pub col_idx: *const ::core::ffi::c_void,
    pub density: f64,
    pub skew: f64,
    pub mask_batch: i64,
    pub mask_heads: i64,
    pub row_counts: *const ::core::ffi::c_void,
    pub row_stride: i64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_dynamic {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_pattern_view {
    pub size: usize,
    pub rows: i64,
    pub cols: i64,
    pub block_rows: i64,
    pub block_cols: i64,
    pub grid_rows: i64,
    pub grid_cols: i64,
    pub stored_blocks: i64,
    pub stored_elements: i64,
    pub row_ptr: *const i64,
    pub col_idx: *const i32,
    pub t_ptr: *const i64,
    pub t_row: *const i32,
    pub t_block: *const i64,
    pub device_row_ptr: *const i64,
    pub device_col_idx: *const i32,
    pub device_t_ptr: *const i64,
    pub device_t_row: *const i32,
    pub device_t_block: *const i64,
    pub density: f64,
    pub skew: f64,
    pub t_skew: f64,
    pub overlap: f64,
    pub max_row: i64,
    pub max_col: i64,
    pub empty_rows: i64,
    pub sequences: i64,
    pub q_offsets: *const i64,
    pub kv_offsets: *const i64,
    pub device_q_offsets: *const i64,
    pub device_kv_offsets: *const i64,
    pub row_end: *const i64,
    pub device_row_end: *const i64,
    pub dynamic: *const sat_dynamic,
    pub mask_batch: i64,
    pub mask_heads: i64,
    pub mask_rows: i64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct sat_layout {
    pub row_stride: i64,
    pub col_stride: i64,
    pub batch_stride: i64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct sat_heads {
    pub batch_stride: i64,
    pub head_stride: i64,
    pub row_stride: i64,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct sat_attention {
    pub heads: i64,
    pub kv_heads: i64,
    pub dim: i64,
    pub causal: bool,
    pub window: i64,
    pub lse: bool,
    pub q: sat_heads,
    pub k: sat_heads,
    pub v: sat_heads,
    pub o: sat_heads,
    pub dq: sat_heads,
    pub dk: sat_heads,
    pub dv: sat_heads,
    pub do_: sat_heads,
    pub value_dim: i64,
    pub softcap: f64,
    pub sinks: bool,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_grouped {
    pub groups: i64,
    pub offset_type: sat_index_type,
    pub bias: bool,
    pub activation: sat_activation,
    pub skew: f64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_matmul {
    pub transpose: sat_transpose,
    pub bias: sat_bias,
    pub activation: sat_activation,
}
#[repr(C)]
#[derive(Copy, Clone)]
pub struct sat_problem {
    pub size: usize,
    pub op: sat_operation,
    pub flags: u32,
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub batch: i64,
    pub a_dtype: sat_dtype,
    pub b_dtype: sat_dtype,
    pub c_dtype: sat_dtype,
    pub compute_dtype: sat_dtype,
    pub a: sat_layout,
    pub b: sat_layout,
    pub c: sat_layout,
    pub a_align: u32,
    pub b_align: u32,
    pub c_align: u32,
    pub reserved_align: u32,
    pub alpha: f64,
    pub beta: f64,
    pub reserved: [u64; 8usize],
    pub __bindgen_anon_1: sat_problem__bindgen_ty_1,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_plan {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_plan_info {
    pub size: usize,
    pub variant: [::core::ffi::c_char; 128usize],
    pub cached: bool,
    pub tuned: bool,
    pub verified: bool,
    pub pattern_verified: bool,
    pub tuning_seconds: f64,
    pub prepare_seconds: f64,
    pub workspace_bytes: usize,
    pub flops: f64,
    pub bytes: f64,
    pub estimate_seconds: f64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_result {
    pub size: usize,
    pub variant: [::core::ffi::c_char; 128usize],
    pub revision: [::core::ffi::c_char; 48usize],
    pub verdict: sat_verdict,
    pub seconds: f64,
    pub spread: f64,
    pub error: f64,
    pub estimate_seconds: f64,
    pub prepare_seconds: f64,
    pub workspace_bytes: usize,
    pub runs: ::core::ffi::c_int,
    pub may_win: bool,
    pub message: [::core::ffi::c_char; 192usize],
    pub least_seconds: f64,
    pub threads: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_race {
    _unused: [u8; 0],
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_race_options {
    pub size: usize,
    pub fresh: bool,
    pub discard: bool,
    pub only: *const ::core::ffi::c_char,
    pub progress: ::core::option::Option<
        unsafe extern "C" fn(
            user: *mut ::core::ffi::c_void,
            done: ::core::ffi::c_int,
            total: ::core::ffi::c_int,
            what: *const ::core::ffi::c_char,
        ) -> bool,
    >,
    pub progress_user: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_race_info {
    pub size: usize,
    pub cached: bool,
    pub seconds: f64,
    pub flops: f64,
    pub bytes: f64,
    pub peak_bytes: usize,
    pub key: [::core::ffi::c_char; 512usize],
    pub disturbed: bool,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_prepare {
    pub size: usize,
    pub variant: *const sat_variant,
    pub device: *const sat_device,
    pub problem: *const sat_problem,
    pub pattern: *const sat_pattern_view,
    pub workspace: *mut ::core::ffi::c_void,
    pub stream: *mut ::core::ffi::c_void,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_launch {
    pub size: usize,
    pub variant: *const sat_variant,
    pub device: *const sat_device,
    pub problem: *const sat_problem,
    pub pattern: *const sat_pattern_view,
    pub operands: *const *mut ::core::ffi::c_void,
    pub workspace: *mut ::core::ffi::c_void,
    pub state: *mut ::core::ffi::c_void,
    pub stream: *mut ::core::ffi::c_void,
    pub threads: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_instance {
    pub dtype: sat_dtype,
    pub tile_m: ::core::ffi::c_int,
    pub tile_n: ::core::ffi::c_int,
    pub tile_k: ::core::ffi::c_int,
    pub option: ::core::ffi::c_int,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct sat_variant {
    pub size: usize,
    pub name: *const ::core::ffi::c_char,
    pub revision: *const ::core::ffi::c_char,
    pub op: sat_operation,
    pub backend: sat_backend_kind,
    pub flags: u32,
    pub priority: ::core::ffi::c_int,
    pub instance: sat_instance,
    pub reserved: [::core::ffi::c_int; 7usize],
    pub about: *const ::core::ffi::c_char,
    pub user: *mut ::core::ffi::c_void,
    pub supports: ::core::option::Option<
        unsafe extern "C" fn(
            v: *const sat_variant,
            p: *const sat_problem,
            a: *const sat_pattern_view,
            d: *const sat_device,
        ) -> bool,
    >,
    pub estimate: ::core::option::Option<
        unsafe extern "C" fn(
            v: *const sat_variant,
            p: *const sat_problem,
            a: *const sat_pattern_view,
            d: *const sat_device,
        ) -> f64,
    >,
    pub workspace: ::core::option::Option<
        unsafe extern "C" fn(
            v: *const sat_variant,
            p: *const sat_problem,
            a: *const sat_pattern_view,
            d: *const sat_device,
        ) -> usize,
    >,
    pub prepare: ::core::option::Option<
        unsafe extern "C" fn(
            prepare: *const sat_prepare,
            state: *mut *mut ::core::ffi::c_void,
        ) -> sat_status,
    >,
    pub refresh: ::core::option::Option<
        unsafe extern "C" fn(launch: *const sat_launch) -> sat_status,
    >,
    pub launch: ::core::option::Option<
        unsafe extern "C" fn(launch: *const sat_launch) -> sat_status,
    >,
    pub release: ::core::option::Option<
        unsafe extern "C" fn(v: *const sat_variant, state: *mut ::core::ffi::c_void),
    >,
}
pub const SAT_VERSION_MAJOR: u32 = 0;
pub const SAT_VERSION_MINOR: u32 = 1;
pub const SAT_VERSION_PATCH: u32 = 0;
pub const SAT_MAX_OPERANDS: u32 = 12;
pub const SAT_PLUGIN_SYMBOL: &[u8; 11] = b"sat_plugin\0";
pub const SAT_OK: sat_status = 0;
pub const SAT_NULL_POINTER: sat_status = 1;
pub const SAT_MISALIGNED: sat_status = 2;
pub const SAT_BAD_SIZE: sat_status = 3;
pub const SAT_BAD_STRIDE: sat_status = 4;
pub const SAT_OVERLAP: sat_status = 5;
pub const SAT_BAD_ENUM: sat_status = 6;
pub const SAT_BAD_STRUCT: sat_status = 7;
pub const SAT_BAD_ROW_PTR: sat_status = 8;
pub const SAT_COLUMN_RANGE: sat_status = 9;
pub const SAT_COLUMN_ORDER: sat_status = 10;
pub const SAT_BAD_BLOCK: sat_status = 11;
pub const SAT_UNSUPPORTED: sat_status = 12;
pub const SAT_OUT_OF_MEMORY: sat_status = 13;
pub const SAT_NOT_FOUND: sat_status = 14;
pub const SAT_IO: sat_status = 15;
pub const SAT_BAD_FORMAT: sat_status = 16;
pub const SAT_DEVICE_ERROR: sat_status = 17;
pub const SAT_LIBRARY_ERROR: sat_status = 18;
pub const SAT_WRONG_RESULT: sat_status = 19;
pub const SAT_WRONG_MEMORY: sat_status = 20;
pub const SAT_DUPLICATE: sat_status = 21;
pub const SAT_CANCELLED: sat_status = 22;
pub const SAT_BUSY: sat_status = 23;
pub const SAT_INTERNAL: sat_status = 99;
pub const SAT_F32: sat_dtype = 1;
pub const SAT_F64: sat_dtype = 2;
pub const SAT_F16: sat_dtype = 3;
pub const SAT_BF16: sat_dtype = 4;
pub const SAT_I32: sat_index_type = 1;
pub const SAT_I64: sat_index_type = 2;
pub const SAT_MATMUL: sat_operation = 1;
pub const SAT_SAMPLED: sat_operation = 2;
pub const SAT_ATTENTION: sat_operation = 3;
pub const SAT_ATTENTION_BACKWARD: sat_operation = 4;
pub const SAT_GROUPED: sat_operation = 5;
pub const SAT_GROUPED_WEIGHTS: sat_operation = 6;
pub const SAT_NO_TRANSPOSE: sat_transpose = 0;
pub const SAT_TRANSPOSE: sat_transpose = 1;
pub const SAT_ACT_NONE: sat_activation = 0;
pub const SAT_ACT_RELU: sat_activation = 1;
pub const SAT_ACT_GELU: sat_activation = 2;
pub const SAT_ACT_SILU: sat_activation = 3;
pub const SAT_BIAS_NONE: sat_bias = 0;
pub const SAT_BIAS_ROW: sat_bias = 1;
pub const SAT_EFFORT_DEFAULT: sat_effort = 0;
pub const SAT_EFFORT_OFF: sat_effort = 1;
pub const SAT_EFFORT_CACHED: sat_effort = 2;
pub const SAT_EFFORT_QUICK: sat_effort = 3;
pub const SAT_EFFORT_FULL: sat_effort = 4;
pub const SAT_EFFORT_PINNED: sat_effort = 5;
pub const SAT_MEASURE_COLD: sat_measure = 0;
pub const SAT_MEASURE_WARM: sat_measure = 1;
pub const SAT_ALLOW_TF32: _bindgen_ty_1 = 1;
pub const SAT_ALLOW_NONDETERMINISTIC: _bindgen_ty_1 = 2;
pub const SAT_ALLOW_DENSE: _bindgen_ty_1 = 4;
pub const SAT_FIXED_VALUES: _bindgen_ty_1 = 8;
pub const SAT_ALLOW_BROADCAST: _bindgen_ty_1 = 16;
pub const SAT_CPU: sat_backend_kind = 1;
pub const SAT_CUDA: sat_backend_kind = 2;
pub const SAT_ISA_AVX2: _bindgen_ty_2 = 1;
pub const SAT_ISA_AVX512: _bindgen_ty_2 = 2;
pub const SAT_ISA_AVX512_BF16: _bindgen_ty_2 = 4;
pub const SAT_ISA_AMX_BF16: _bindgen_ty_2 = 8;
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_device"][::core::mem::size_of::<sat_device>() - 688usize];
    ["Alignment of sat_device"][::core::mem::align_of::<sat_device>() - 8usize];
    [
        "Offset of field: sat_device::size",
    ][::core::mem::offset_of!(sat_device, size) - 0usize];
    [
        "Offset of field: sat_device::backend",
    ][::core::mem::offset_of!(sat_device, backend) - 8usize];
    [
        "Offset of field: sat_device::index",
    ][::core::mem::offset_of!(sat_device, index) - 12usize];
    [
        "Offset of field: sat_device::name",
    ][::core::mem::offset_of!(sat_device, name) - 16usize];
    [
        "Offset of field: sat_device::identity",
    ][::core::mem::offset_of!(sat_device, identity) - 144usize];
    [
        "Offset of field: sat_device::isa",
    ][::core::mem::offset_of!(sat_device, isa) - 336usize];
    [
        "Offset of field: sat_device::threads",
    ][::core::mem::offset_of!(sat_device, threads) - 340usize];
    [
        "Offset of field: sat_device::multiprocessors",
    ][::core::mem::offset_of!(sat_device, multiprocessors) - 344usize];
    [
        "Offset of field: sat_device::capability",
    ][::core::mem::offset_of!(sat_device, capability) - 348usize];
    [
        "Offset of field: sat_device::l1_bytes",
    ][::core::mem::offset_of!(sat_device, l1_bytes) - 352usize];
    [
        "Offset of field: sat_device::l2_bytes",
    ][::core::mem::offset_of!(sat_device, l2_bytes) - 360usize];
    [
        "Offset of field: sat_device::l3_bytes",
    ][::core::mem::offset_of!(sat_device, l3_bytes) - 368usize];
    [
        "Offset of field: sat_device::memory_bytes",
    ][::core::mem::offset_of!(sat_device, memory_bytes) - 376usize];
    [
        "Offset of field: sat_device::memory_rate",
    ][::core::mem::offset_of!(sat_device, memory_rate) - 384usize];
    [
        "Offset of field: sat_device::flop_rate",
    ][::core::mem::offset_of!(sat_device, flop_rate) - 392usize];
    [
        "Offset of field: sat_device::l2_rate",
    ][::core::mem::offset_of!(sat_device, l2_rate) - 648usize];
    [
        "Offset of field: sat_device::tf32_rate",
    ][::core::mem::offset_of!(sat_device, tf32_rate) - 656usize];
    [
        "Offset of field: sat_device::measured",
    ][::core::mem::offset_of!(sat_device, measured) - 664usize];
    [
        "Offset of field: sat_device::shared_bytes",
    ][::core::mem::offset_of!(sat_device, shared_bytes) - 672usize];
    [
        "Offset of field: sat_device::driver",
    ][::core::mem::offset_of!(sat_device, driver) - 680usize];
};
pub const SAT_LOG_ERROR: sat_log_level = 1;
pub const SAT_LOG_WARN: sat_log_level = 2;
pub const SAT_LOG_INFO: sat_log_level = 3;
pub const SAT_LOG_DEBUG: sat_log_level = 4;
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_allocator"][::core::mem::size_of::<sat_allocator>() - 32usize];
    ["Alignment of sat_allocator"][::core::mem::align_of::<sat_allocator>() - 8usize];
    [
        "Offset of field: sat_allocator::size",
    ][::core::mem::offset_of!(sat_allocator, size) - 0usize];
    [
        "Offset of field: sat_allocator::alloc",
    ][::core::mem::offset_of!(sat_allocator, alloc) - 8usize];
    [
        "Offset of field: sat_allocator::free",
    ][::core::mem::offset_of!(sat_allocator, free) - 16usize];
    [
        "Offset of field: sat_allocator::user",
    ][::core::mem::offset_of!(sat_allocator, user) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of sat_context_options",
    ][::core::mem::size_of::<sat_context_options>() - 88usize];
    [
        "Alignment of sat_context_options",
    ][::core::mem::align_of::<sat_context_options>() - 8usize];
    [
        "Offset of field: sat_context_options::size",
    ][::core::mem::offset_of!(sat_context_options, size) - 0usize];
    [
        "Offset of field: sat_context_options::device",
    ][::core::mem::offset_of!(sat_context_options, device) - 8usize];
    [
        "Offset of field: sat_context_options::cache_dir",
    ][::core::mem::offset_of!(sat_context_options, cache_dir) - 16usize];
    [
        "Offset of field: sat_context_options::effort",
    ][::core::mem::offset_of!(sat_context_options, effort) - 24usize];
    [
        "Offset of field: sat_context_options::measure",
    ][::core::mem::offset_of!(sat_context_options, measure) - 28usize];
    [
        "Offset of field: sat_context_options::threads",
    ][::core::mem::offset_of!(sat_context_options, threads) - 32usize];
    [
        "Offset of field: sat_context_options::multiprocessors",
    ][::core::mem::offset_of!(sat_context_options, multiprocessors) - 36usize];
    [
        "Offset of field: sat_context_options::background",
    ][::core::mem::offset_of!(sat_context_options, background) - 40usize];
    [
        "Offset of field: sat_context_options::budget_seconds",
    ][::core::mem::offset_of!(sat_context_options, budget_seconds) - 48usize];
    [
        "Offset of field: sat_context_options::memory_limit",
    ][::core::mem::offset_of!(sat_context_options, memory_limit) - 56usize];
    [
        "Offset of field: sat_context_options::allocator",
    ][::core::mem::offset_of!(sat_context_options, allocator) - 64usize];
    [
        "Offset of field: sat_context_options::log",
    ][::core::mem::offset_of!(sat_context_options, log) - 72usize];
    [
        "Offset of field: sat_context_options::log_user",
    ][::core::mem::offset_of!(sat_context_options, log_user) - 80usize];
};
pub const SAT_AGREED_SIZE: _bindgen_ty_3 = 256;
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_agreement"][::core::mem::size_of::<sat_agreement>() - 48usize];
    ["Alignment of sat_agreement"][::core::mem::align_of::<sat_agreement>() - 8usize];
    [
        "Offset of field: sat_agreement::size",
    ][::core::mem::offset_of!(sat_agreement, size) - 0usize];
    [
        "Offset of field: sat_agreement::rank",
    ][::core::mem::offset_of!(sat_agreement, rank) - 8usize];
    [
        "Offset of field: sat_agreement::world",
    ][::core::mem::offset_of!(sat_agreement, world) - 12usize];
    [
        "Offset of field: sat_agreement::wait_seconds",
    ][::core::mem::offset_of!(sat_agreement, wait_seconds) - 16usize];
    [
        "Offset of field: sat_agreement::get",
    ][::core::mem::offset_of!(sat_agreement, get) - 24usize];
    [
        "Offset of field: sat_agreement::put",
    ][::core::mem::offset_of!(sat_agreement, put) - 32usize];
    [
        "Offset of field: sat_agreement::user",
    ][::core::mem::offset_of!(sat_agreement, user) - 40usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_bsr"][::core::mem::size_of::<sat_bsr>() - 96usize];
    ["Alignment of sat_bsr"][::core::mem::align_of::<sat_bsr>() - 8usize];
    ["Offset of field: sat_bsr::size"][::core::mem::offset_of!(sat_bsr, size) - 0usize];
    ["Offset of field: sat_bsr::rows"][::core::mem::offset_of!(sat_bsr, rows) - 8usize];
    ["Offset of field: sat_bsr::cols"][::core::mem::offset_of!(sat_bsr, cols) - 16usize];
    [
        "Offset of field: sat_bsr::block_rows",
    ][::core::mem::offset_of!(sat_bsr, block_rows) - 24usize];
    [
        "Offset of field: sat_bsr::block_cols",
    ][::core::mem::offset_of!(sat_bsr, block_cols) - 32usize];
    [
        "Offset of field: sat_bsr::stored_blocks",
    ][::core::mem::offset_of!(sat_bsr, stored_blocks) - 40usize];
    [
        "Offset of field: sat_bsr::index_type",
    ][::core::mem::offset_of!(sat_bsr, index_type) - 48usize];
    [
        "Offset of field: sat_bsr::row_ptr",
    ][::core::mem::offset_of!(sat_bsr, row_ptr) - 56usize];
    [
        "Offset of field: sat_bsr::col_idx",
    ][::core::mem::offset_of!(sat_bsr, col_idx) - 64usize];
    [
        "Offset of field: sat_bsr::sequences",
    ][::core::mem::offset_of!(sat_bsr, sequences) - 72usize];
    [
        "Offset of field: sat_bsr::q_offsets",
    ][::core::mem::offset_of!(sat_bsr, q_offsets) - 80usize];
    [
        "Offset of field: sat_bsr::kv_offsets",
    ][::core::mem::offset_of!(sat_bsr, kv_offsets) - 88usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_dynamic_bsr"][::core::mem::size_of::<sat_dynamic_bsr>() - 120usize];
    [
        "Alignment of sat_dynamic_bsr",
    ][::core::mem::align_of::<sat_dynamic_bsr>() - 8usize];
    [
        "Offset of field: sat_dynamic_bsr::size",
    ][::core::mem::offset_of!(sat_dynamic_bsr, size) - 0usize];
    [
        "Offset of field: sat_dynamic_bsr::rows",
    ][::core::mem::offset_of!(sat_dynamic_bsr, rows) - 8usize];
    [
        "Offset of field: sat_dynamic_bsr::cols",
    ][::core::mem::offset_of!(sat_dynamic_bsr, cols) - 16usize];
    [
        "Offset of field: sat_dynamic_bsr::block_rows",
    ][::core::mem::offset_of!(sat_dynamic_bsr, block_rows) - 24usize];
    [
        "Offset of field: sat_dynamic_bsr::block_cols",
    ][::core::mem::offset_of!(sat_dynamic_bsr, block_cols) - 32usize];
    [
        "Offset of field: sat_dynamic_bsr::capacity",
    ][::core::mem::offset_of!(sat_dynamic_bsr, capacity) - 40usize];
    [
        "Offset of field: sat_dynamic_bsr::index_type",
    ][::core::mem::offset_of!(sat_dynamic_bsr, index_type) - 48usize];
    [
        "Offset of field: sat_dynamic_bsr::row_ptr",
    ][::core::mem::offset_of!(sat_dynamic_bsr, row_ptr) - 56usize];
    [
        "Offset of field: sat_dynamic_bsr::col_idx",
    ][::core::mem::offset_of!(sat_dynamic_bsr, col_idx) - 64usize];
    [
        "Offset of field: sat_dynamic_bsr::density",
    ][::core::mem::offset_of!(sat_dynamic_bsr, density) - 72usize];
    [
        "Offset of field: sat_dynamic_bsr::skew",
    ][::core::mem::offset_of!(sat_dynamic_bsr, skew) - 80usize];
    [
        "Offset of field: sat_dynamic_bsr::mask_batch",
    ][::core::mem::offset_of!(sat_dynamic_bsr, mask_batch) - 88usize];
    [
        "Offset of field: sat_dynamic_bsr::mask_heads",
    ][::core::mem::offset_of!(sat_dynamic_bsr, mask_heads) - 96usize];
    [
        "Offset of field: sat_dynamic_bsr::row_counts",
    ][::core::mem::offset_of!(sat_dynamic_bsr, row_counts) - 104usize];
    [
        "Offset of field: sat_dynamic_bsr::row_stride",
    ][::core::mem::offset_of!(sat_dynamic_bsr, row_stride) - 112usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_pattern_view"][::core::mem::size_of::<sat_pattern_view>() - 296usize];
    [
        "Alignment of sat_pattern_view",
    ][::core::mem::align_of::<sat_pattern_view>() - 8usize];
    [
        "Offset of field: sat_pattern_view::size",
    ][::core::mem::offset_of!(sat_pattern_view, size) - 0usize];
    [
        "Offset of field: sat_pattern_view::rows",
    ][::core::mem::offset_of!(sat_pattern_view, rows) - 8usize];
    [
        "Offset of field: sat_pattern_view::cols",
    ][::core::mem::offset_of!(sat_pattern_view, cols) - 16usize];
    [
        "Offset of field: sat_pattern_view::block_rows",
    ][::core::mem::offset_of!(sat_pattern_view, block_rows) - 24usize];
    [
        "Offset of field: sat_pattern_view::block_cols",
    ][::core::mem::offset_of!(sat_pattern_view, block_cols) - 32usize];
    [
        "Offset of field: sat_pattern_view::grid_rows",
    ][::core::mem::offset_of!(sat_pattern_view, grid_rows) - 40usize];
    [
        "Offset of field: sat_pattern_view::grid_cols",
    ][::core::mem::offset_of!(sat_pattern_view, grid_cols) - 48usize];
    [
        "Offset of field: sat_pattern_view::stored_blocks",
    ][::core::mem::offset_of!(sat_pattern_view, stored_blocks) - 56usize];
    [
        "Offset of field: sat_pattern_view::stored_elements",
    ][::core::mem::offset_of!(sat_pattern_view, stored_elements) - 64usize];
    [
        "Offset of field: sat_pattern_view::row_ptr",
    ][::core::mem::offset_of!(sat_pattern_view, row_ptr) - 72usize];
    [
        "Offset of field: sat_pattern_view::col_idx",
    ][::core::mem::offset_of!(sat_pattern_view, col_idx) - 80usize];
    [
        "Offset of field: sat_pattern_view::t_ptr",
    ][::core::mem::offset_of!(sat_pattern_view, t_ptr) - 88usize];
    [
        "Offset of field: sat_pattern_view::t_row",
    ][::core::mem::offset_of!(sat_pattern_view, t_row) - 96usize];
    [
        "Offset of field: sat_pattern_view::t_block",
    ][::core::mem::offset_of!(sat_pattern_view, t_block) - 104usize];
    [
        "Offset of field: sat_pattern_view::device_row_ptr",
    ][::core::mem::offset_of!(sat_pattern_view, device_row_ptr) - 112usize];
    [
        "Offset of field: sat_pattern_view::device_col_idx",
    ][::core::mem::offset_of!(sat_pattern_view, device_col_idx) - 120usize];
    [
        "Offset of field: sat_pattern_view::device_t_ptr",
    ][::core::mem::offset_of!(sat_pattern_view, device_t_ptr) - 128usize];
    [
        "Offset of field: sat_pattern_view::device_t_row",
    ][::core::mem::offset_of!(sat_pattern_view, device_t_row) - 136usize];
    [
        "Offset of field: sat_pattern_view::device_t_block",
    ][::core::mem::offset_of!(sat_pattern_view, device_t_block) - 144usize];
    [
        "Offset of field: sat_pattern_view::density",
    ][::core::mem::offset_of!(sat_pattern_view, density) - 152usize];
    [
        "Offset of field: sat_pattern_view::skew",
    ][::core::mem::offset_of!(sat_pattern_view, skew) - 160usize];
    [
        "Offset of field: sat_pattern_view::t_skew",
    ][::core::mem::offset_of!(sat_pattern_view, t_skew) - 168usize];
    [
        "Offset of field: sat_pattern_view::overlap",
    ][::core::mem::offset_of!(sat_pattern_view, overlap) - 176usize];
    [
        "Offset of field: sat_pattern_view::max_row",
    ][::core::mem::offset_of!(sat_pattern_view, max_row) - 184usize];
    [
        "Offset of field: sat_pattern_view::max_col",
    ][::core::mem::offset_of!(sat_pattern_view, max_col) - 192usize];
    [
        "Offset of field: sat_pattern_view::empty_rows",
    ][::core::mem::offset_of!(sat_pattern_view, empty_rows) - 200usize];
    [
        "Offset of field: sat_pattern_view::sequences",
    ][::core::mem::offset_of!(sat_pattern_view, sequences) - 208usize];
    [
        "Offset of field: sat_pattern_view::q_offsets",
    ][::core::mem::offset_of!(sat_pattern_view, q_offsets) - 216usize];
    [
        "Offset of field: sat_pattern_view::kv_offsets",
    ][::core::mem::offset_of!(sat_pattern_view, kv_offsets) - 224usize];
    [
        "Offset of field: sat_pattern_view::device_q_offsets",
    ][::core::mem::offset_of!(sat_pattern_view, device_q_offsets) - 232usize];
    [
        "Offset of field: sat_pattern_view::device_kv_offsets",
    ][::core::mem::offset_of!(sat_pattern_view, device_kv_offsets) - 240usize];
    [
        "Offset of field: sat_pattern_view::row_end",
    ][::core::mem::offset_of!(sat_pattern_view, row_end) - 248usize];
    [
        "Offset of field: sat_pattern_view::device_row_end",
    ][::core::mem::offset_of!(sat_pattern_view, device_row_end) - 256usize];
    [
        "Offset of field: sat_pattern_view::dynamic",
    ][::core::mem::offset_of!(sat_pattern_view, dynamic) - 264usize];
    [
        "Offset of field: sat_pattern_view::mask_batch",
    ][::core::mem::offset_of!(sat_pattern_view, mask_batch) - 272usize];
    [
        "Offset of field: sat_pattern_view::mask_heads",
    ][::core::mem::offset_of!(sat_pattern_view, mask_heads) - 280usize];
    [
        "Offset of field: sat_pattern_view::mask_rows",
    ][::core::mem::offset_of!(sat_pattern_view, mask_rows) - 288usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_layout"][::core::mem::size_of::<sat_layout>() - 24usize];
    ["Alignment of sat_layout"][::core::mem::align_of::<sat_layout>() - 8usize];
    [
        "Offset of field: sat_layout::row_stride",
    ][::core::mem::offset_of!(sat_layout, row_stride) - 0usize];
    [
        "Offset of field: sat_layout::col_stride",
    ][::core::mem::offset_of!(sat_layout, col_stride) - 8usize];
    [
        "Offset of field: sat_layout::batch_stride",
    ][::core::mem::offset_of!(sat_layout, batch_stride) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_heads"][::core::mem::size_of::<sat_heads>() - 24usize];
    ["Alignment of sat_heads"][::core::mem::align_of::<sat_heads>() - 8usize];
    [
        "Offset of field: sat_heads::batch_stride",
    ][::core::mem::offset_of!(sat_heads, batch_stride) - 0usize];
    [
        "Offset of field: sat_heads::head_stride",
    ][::core::mem::offset_of!(sat_heads, head_stride) - 8usize];
    [
        "Offset of field: sat_heads::row_stride",
    ][::core::mem::offset_of!(sat_heads, row_stride) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_attention"][::core::mem::size_of::<sat_attention>() - 264usize];
    ["Alignment of sat_attention"][::core::mem::align_of::<sat_attention>() - 8usize];
    [
        "Offset of field: sat_attention::heads",
    ][::core::mem::offset_of!(sat_attention, heads) - 0usize];
    [
        "Offset of field: sat_attention::kv_heads",
    ][::core::mem::offset_of!(sat_attention, kv_heads) - 8usize];
    [
        "Offset of field: sat_attention::dim",
    ][::core::mem::offset_of!(sat_attention, dim) - 16usize];
    [
        "Offset of field: sat_attention::causal",
    ][::core::mem::offset_of!(sat_attention, causal) - 24usize];
    [
        "Offset of field: sat_attention::window",
    ][::core::mem::offset_of!(sat_attention, window) - 32usize];
    [
        "Offset of field: sat_attention::lse",
    ][::core::mem::offset_of!(sat_attention, lse) - 40usize];
    [
        "Offset of field: sat_attention::q",
    ][::core::mem::offset_of!(sat_attention, q) - 48usize];
    [
        "Offset of field: sat_attention::k",
    ][::core::mem::offset_of!(sat_attention, k) - 72usize];
    [
        "Offset of field: sat_attention::v",
    ][::core::mem::offset_of!(sat_attention, v) - 96usize];
    [
        "Offset of field: sat_attention::o",
    ][::core::mem::offset_of!(sat_attention, o) - 120usize];
    [
        "Offset of field: sat_attention::dq",
    ][::core::mem::offset_of!(sat_attention, dq) - 144usize];
    [
        "Offset of field: sat_attention::dk",
    ][::core::mem::offset_of!(sat_attention, dk) - 168usize];
    [
        "Offset of field: sat_attention::dv",
    ][::core::mem::offset_of!(sat_attention, dv) - 192usize];
    [
        "Offset of field: sat_attention::do_",
    ][::core::mem::offset_of!(sat_attention, do_) - 216usize];
    [
        "Offset of field: sat_attention::value_dim",
    ][::core::mem::offset_of!(sat_attention, value_dim) - 240usize];
    [
        "Offset of field: sat_attention::softcap",
    ][::core::mem::offset_of!(sat_attention, softcap) - 248usize];
    [
        "Offset of field: sat_attention::sinks",
    ][::core::mem::offset_of!(sat_attention, sinks) - 256usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_grouped"][::core::mem::size_of::<sat_grouped>() - 32usize];
    ["Alignment of sat_grouped"][::core::mem::align_of::<sat_grouped>() - 8usize];
    [
        "Offset of field: sat_grouped::groups",
    ][::core::mem::offset_of!(sat_grouped, groups) - 0usize];
    [
        "Offset of field: sat_grouped::offset_type",
    ][::core::mem::offset_of!(sat_grouped, offset_type) - 8usize];
    [
        "Offset of field: sat_grouped::bias",
    ][::core::mem::offset_of!(sat_grouped, bias) - 12usize];
    [
        "Offset of field: sat_grouped::activation",
    ][::core::mem::offset_of!(sat_grouped, activation) - 16usize];
    [
        "Offset of field: sat_grouped::skew",
    ][::core::mem::offset_of!(sat_grouped, skew) - 24usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_matmul"][::core::mem::size_of::<sat_matmul>() - 12usize];
    ["Alignment of sat_matmul"][::core::mem::align_of::<sat_matmul>() - 4usize];
    [
        "Offset of field: sat_matmul::transpose",
    ][::core::mem::offset_of!(sat_matmul, transpose) - 0usize];
    [
        "Offset of field: sat_matmul::bias",
    ][::core::mem::offset_of!(sat_matmul, bias) - 4usize];
    [
        "Offset of field: sat_matmul::activation",
    ][::core::mem::offset_of!(sat_matmul, activation) - 8usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    [
        "Size of sat_problem__bindgen_ty_1",
    ][::core::mem::size_of::<sat_problem__bindgen_ty_1>() - 384usize];
    [
        "Alignment of sat_problem__bindgen_ty_1",
    ][::core::mem::align_of::<sat_problem__bindgen_ty_1>() - 8usize];
    [
        "Offset of field: sat_problem__bindgen_ty_1::room",
    ][::core::mem::offset_of!(sat_problem__bindgen_ty_1, room) - 0usize];
    [
        "Offset of field: sat_problem__bindgen_ty_1::matmul",
    ][::core::mem::offset_of!(sat_problem__bindgen_ty_1, matmul) - 0usize];
    [
        "Offset of field: sat_problem__bindgen_ty_1::attention",
    ][::core::mem::offset_of!(sat_problem__bindgen_ty_1, attention) - 0usize];
    [
        "Offset of field: sat_problem__bindgen_ty_1::grouped",
    ][::core::mem::offset_of!(sat_problem__bindgen_ty_1, grouped) - 0usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_problem"][::core::mem::size_of::<sat_problem>() - 616usize];
    ["Alignment of sat_problem"][::core::mem::align_of::<sat_problem>() - 8usize];
    [
        "Offset of field: sat_problem::size",
    ][::core::mem::offset_of!(sat_problem, size) - 0usize];
    [
        "Offset of field: sat_problem::op",
    ][::core::mem::offset_of!(sat_problem, op) - 8usize];
    [
        "Offset of field: sat_problem::flags",
    ][::core::mem::offset_of!(sat_problem, flags) - 12usize];
    [
        "Offset of field: sat_problem::m",
    ][::core::mem::offset_of!(sat_problem, m) - 16usize];
    [
        "Offset of field: sat_problem::n",
    ][::core::mem::offset_of!(sat_problem, n) - 24usize];
    [
        "Offset of field: sat_problem::k",
    ][::core::mem::offset_of!(sat_problem, k) - 32usize];
    [
        "Offset of field: sat_problem::batch",
    ][::core::mem::offset_of!(sat_problem, batch) - 40usize];
    [
        "Offset of field: sat_problem::a_dtype",
    ][::core::mem::offset_of!(sat_problem, a_dtype) - 48usize];
    [
        "Offset of field: sat_problem::b_dtype",
    ][::core::mem::offset_of!(sat_problem, b_dtype) - 52usize];
    [
        "Offset of field: sat_problem::c_dtype",
    ][::core::mem::offset_of!(sat_problem, c_dtype) - 56usize];
    [
        "Offset of field: sat_problem::compute_dtype",
    ][::core::mem::offset_of!(sat_problem, compute_dtype) - 60usize];
    [
        "Offset of field: sat_problem::a",
    ][::core::mem::offset_of!(sat_problem, a) - 64usize];
    [
        "Offset of field: sat_problem::b",
    ][::core::mem::offset_of!(sat_problem, b) - 88usize];
    [
        "Offset of field: sat_problem::c",
    ][::core::mem::offset_of!(sat_problem, c) - 112usize];
    [
        "Offset of field: sat_problem::a_align",
    ][::core::mem::offset_of!(sat_problem, a_align) - 136usize];
    [
        "Offset of field: sat_problem::b_align",
    ][::core::mem::offset_of!(sat_problem, b_align) - 140usize];
    [
        "Offset of field: sat_problem::c_align",
    ][::core::mem::offset_of!(sat_problem, c_align) - 144usize];
    [
        "Offset of field: sat_problem::reserved_align",
    ][::core::mem::offset_of!(sat_problem, reserved_align) - 148usize];
    [
        "Offset of field: sat_problem::alpha",
    ][::core::mem::offset_of!(sat_problem, alpha) - 152usize];
    [
        "Offset of field: sat_problem::beta",
    ][::core::mem::offset_of!(sat_problem, beta) - 160usize];
    [
        "Offset of field: sat_problem::reserved",
    ][::core::mem::offset_of!(sat_problem, reserved) - 168usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_plan_info"][::core::mem::size_of::<sat_plan_info>() - 192usize];
    ["Alignment of sat_plan_info"][::core::mem::align_of::<sat_plan_info>() - 8usize];
    [
        "Offset of field: sat_plan_info::size",
    ][::core::mem::offset_of!(sat_plan_info, size) - 0usize];
    [
        "Offset of field: sat_plan_info::variant",
    ][::core::mem::offset_of!(sat_plan_info, variant) - 8usize];
    [
        "Offset of field: sat_plan_info::cached",
    ][::core::mem::offset_of!(sat_plan_info, cached) - 136usize];
    [
        "Offset of field: sat_plan_info::tuned",
    ][::core::mem::offset_of!(sat_plan_info, tuned) - 137usize];
    [
        "Offset of field: sat_plan_info::verified",
    ][::core::mem::offset_of!(sat_plan_info, verified) - 138usize];
    [
        "Offset of field: sat_plan_info::pattern_verified",
    ][::core::mem::offset_of!(sat_plan_info, pattern_verified) - 139usize];
    [
        "Offset of field: sat_plan_info::tuning_seconds",
    ][::core::mem::offset_of!(sat_plan_info, tuning_seconds) - 144usize];
    [
        "Offset of field: sat_plan_info::prepare_seconds",
    ][::core::mem::offset_of!(sat_plan_info, prepare_seconds) - 152usize];
    [
        "Offset of field: sat_plan_info::workspace_bytes",
    ][::core::mem::offset_of!(sat_plan_info, workspace_bytes) - 160usize];
    [
        "Offset of field: sat_plan_info::flops",
    ][::core::mem::offset_of!(sat_plan_info, flops) - 168usize];
    [
        "Offset of field: sat_plan_info::bytes",
    ][::core::mem::offset_of!(sat_plan_info, bytes) - 176usize];
    [
        "Offset of field: sat_plan_info::estimate_seconds",
    ][::core::mem::offset_of!(sat_plan_info, estimate_seconds) - 184usize];
};
pub const SAT_VERDICT_OK: sat_verdict = 1;
pub const SAT_VERDICT_WRONG: sat_verdict = 2;
pub const SAT_VERDICT_ERROR: sat_verdict = 3;
pub const SAT_VERDICT_SKIPPED: sat_verdict = 4;
pub const SAT_VERDICT_MEMORY: sat_verdict = 5;
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_result"][::core::mem::size_of::<sat_result>() - 456usize];
    ["Alignment of sat_result"][::core::mem::align_of::<sat_result>() - 8usize];
    [
        "Offset of field: sat_result::size",
    ][::core::mem::offset_of!(sat_result, size) - 0usize];
    [
        "Offset of field: sat_result::variant",
    ][::core::mem::offset_of!(sat_result, variant) - 8usize];
    [
        "Offset of field: sat_result::revision",
    ][::core::mem::offset_of!(sat_result, revision) - 136usize];
    [
        "Offset of field: sat_result::verdict",
    ][::core::mem::offset_of!(sat_result, verdict) - 184usize];
    [
        "Offset of field: sat_result::seconds",
    ][::core::mem::offset_of!(sat_result, seconds) - 192usize];
    [
        "Offset of field: sat_result::spread",
    ][::core::mem::offset_of!(sat_result, spread) - 200usize];
    [
        "Offset of field: sat_result::error",
    ][::core::mem::offset_of!(sat_result, error) - 208usize];
    [
        "Offset of field: sat_result::estimate_seconds",
    ][::core::mem::offset_of!(sat_result, estimate_seconds) - 216usize];
    [
        "Offset of field: sat_result::prepare_seconds",
    ][::core::mem::offset_of!(sat_result, prepare_seconds) - 224usize];
    [
        "Offset of field: sat_result::workspace_bytes",
    ][::core::mem::offset_of!(sat_result, workspace_bytes) - 232usize];
    [
        "Offset of field: sat_result::runs",
    ][::core::mem::offset_of!(sat_result, runs) - 240usize];
    [
        "Offset of field: sat_result::may_win",
    ][::core::mem::offset_of!(sat_result, may_win) - 244usize];
    [
        "Offset of field: sat_result::message",
    ][::core::mem::offset_of!(sat_result, message) - 245usize];
    [
        "Offset of field: sat_result::least_seconds",
    ][::core::mem::offset_of!(sat_result, least_seconds) - 440usize];
    [
        "Offset of field: sat_result::threads",
    ][::core::mem::offset_of!(sat_result, threads) - 448usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_race_options"][::core::mem::size_of::<sat_race_options>() - 40usize];
    [
        "Alignment of sat_race_options",
    ][::core::mem::align_of::<sat_race_options>() - 8usize];
    [
        "Offset of field: sat_race_options::size",
    ][::core::mem::offset_of!(sat_race_options, size) - 0usize];
    [
        "Offset of field: sat_race_options::fresh",
    ][::core::mem::offset_of!(sat_race_options, fresh) - 8usize];
    [
        "Offset of field: sat_race_options::discard",
    ][::core::mem::offset_of!(sat_race_options, discard) - 9usize];
    [
        "Offset of field: sat_race_options::only",
    ][::core::mem::offset_of!(sat_race_options, only) - 16usize];
    [
        "Offset of field: sat_race_options::progress",
    ][::core::mem::offset_of!(sat_race_options, progress) - 24usize];
    [
        "Offset of field: sat_race_options::progress_user",
    ][::core::mem::offset_of!(sat_race_options, progress_user) - 32usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_race_info"][::core::mem::size_of::<sat_race_info>() - 568usize];
    ["Alignment of sat_race_info"][::core::mem::align_of::<sat_race_info>() - 8usize];
    [
        "Offset of field: sat_race_info::size",
    ][::core::mem::offset_of!(sat_race_info, size) - 0usize];
    [
        "Offset of field: sat_race_info::cached",
    ][::core::mem::offset_of!(sat_race_info, cached) - 8usize];
    [
        "Offset of field: sat_race_info::seconds",
    ][::core::mem::offset_of!(sat_race_info, seconds) - 16usize];
    [
        "Offset of field: sat_race_info::flops",
    ][::core::mem::offset_of!(sat_race_info, flops) - 24usize];
    [
        "Offset of field: sat_race_info::bytes",
    ][::core::mem::offset_of!(sat_race_info, bytes) - 32usize];
    [
        "Offset of field: sat_race_info::peak_bytes",
    ][::core::mem::offset_of!(sat_race_info, peak_bytes) - 40usize];
    [
        "Offset of field: sat_race_info::key",
    ][::core::mem::offset_of!(sat_race_info, key) - 48usize];
    [
        "Offset of field: sat_race_info::disturbed",
    ][::core::mem::offset_of!(sat_race_info, disturbed) - 560usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_prepare"][::core::mem::size_of::<sat_prepare>() - 56usize];
    ["Alignment of sat_prepare"][::core::mem::align_of::<sat_prepare>() - 8usize];
    [
        "Offset of field: sat_prepare::size",
    ][::core::mem::offset_of!(sat_prepare, size) - 0usize];
    [
        "Offset of field: sat_prepare::variant",
    ][::core::mem::offset_of!(sat_prepare, variant) - 8usize];
    [
        "Offset of field: sat_prepare::device",
    ][::core::mem::offset_of!(sat_prepare, device) - 16usize];
    [
        "Offset of field: sat_prepare::problem",
    ][::core::mem::offset_of!(sat_prepare, problem) - 24usize];
    [
        "Offset of field: sat_prepare::pattern",
    ][::core::mem::offset_of!(sat_prepare, pattern) - 32usize];
    [
        "Offset of field: sat_prepare::workspace",
    ][::core::mem::offset_of!(sat_prepare, workspace) - 40usize];
    [
        "Offset of field: sat_prepare::stream",
    ][::core::mem::offset_of!(sat_prepare, stream) - 48usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_launch"][::core::mem::size_of::<sat_launch>() - 80usize];
    ["Alignment of sat_launch"][::core::mem::align_of::<sat_launch>() - 8usize];
    [
        "Offset of field: sat_launch::size",
    ][::core::mem::offset_of!(sat_launch, size) - 0usize];
    [
        "Offset of field: sat_launch::variant",
    ][::core::mem::offset_of!(sat_launch, variant) - 8usize];
    [
        "Offset of field: sat_launch::device",
    ][::core::mem::offset_of!(sat_launch, device) - 16usize];
    [
        "Offset of field: sat_launch::problem",
    ][::core::mem::offset_of!(sat_launch, problem) - 24usize];
    [
        "Offset of field: sat_launch::pattern",
    ][::core::mem::offset_of!(sat_launch, pattern) - 32usize];
    [
        "Offset of field: sat_launch::operands",
    ][::core::mem::offset_of!(sat_launch, operands) - 40usize];
    [
        "Offset of field: sat_launch::workspace",
    ][::core::mem::offset_of!(sat_launch, workspace) - 48usize];
    [
        "Offset of field: sat_launch::state",
    ][::core::mem::offset_of!(sat_launch, state) - 56usize];
    [
        "Offset of field: sat_launch::stream",
    ][::core::mem::offset_of!(sat_launch, stream) - 64usize];
    [
        "Offset of field: sat_launch::threads",
    ][::core::mem::offset_of!(sat_launch, threads) - 72usize];
};
pub const SAT_V_REFERENCE: _bindgen_ty_4 = 1;
pub const SAT_V_NONDETERMINISTIC: _bindgen_ty_4 = 2;
pub const SAT_V_DENSE: _bindgen_ty_4 = 4;
pub const SAT_V_LIBRARY: _bindgen_ty_4 = 8;
pub const SAT_V_BATCHED: _bindgen_ty_4 = 16;
pub const SAT_V_SCRATCH: _bindgen_ty_4 = 32;
pub const SAT_V_DYNAMIC: _bindgen_ty_4 = 64;
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_instance"][::core::mem::size_of::<sat_instance>() - 20usize];
    ["Alignment of sat_instance"][::core::mem::align_of::<sat_instance>() - 4usize];
    [
        "Offset of field: sat_instance::dtype",
    ][::core::mem::offset_of!(sat_instance, dtype) - 0usize];
    [
        "Offset of field: sat_instance::tile_m",
    ][::core::mem::offset_of!(sat_instance, tile_m) - 4usize];
    [
        "Offset of field: sat_instance::tile_n",
    ][::core::mem::offset_of!(sat_instance, tile_n) - 8usize];
    [
        "Offset of field: sat_instance::tile_k",
    ][::core::mem::offset_of!(sat_instance, tile_k) - 12usize];
    [
        "Offset of field: sat_instance::option",
    ][::core::mem::offset_of!(sat_instance, option) - 16usize];
};
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of sat_variant"][::core::mem::size_of::<sat_variant>() - 160usize];
    ["Alignment of sat_variant"][::core::mem::align_of::<sat_variant>() - 8usize];
    [
        "Offset of field: sat_variant::size",
    ][::core::mem::offset_of!(sat_variant, size) - 0usize];
    [
        "Offset of field: sat_variant::name",
    ][::core::mem::offset_of!(sat_variant, name) - 8usize];
    [
        "Offset of field: sat_variant::revision",
    ][::core::mem::offset_of!(sat_variant, revision) - 16usize];
    [
        "Offset of field: sat_variant::op",
    ][::core::mem::offset_of!(sat_variant, op) - 24usize];
    [
        "Offset of field: sat_variant::backend",
    ][::core::mem::offset_of!(sat_variant, backend) - 28usize];
    [
        "Offset of field: sat_variant::flags",
    ][::core::mem::offset_of!(sat_variant, flags) - 32usize];
    [
        "Offset of field: sat_variant::priority",
    ][::core::mem::offset_of!(sat_variant, priority) - 36usize];
    [
        "Offset of field: sat_variant::instance",
    ][::core::mem::offset_of!(sat_variant, instance) - 40usize];
    [
        "Offset of field: sat_variant::reserved",
    ][::core::mem::offset_of!(sat_variant, reserved) - 60usize];
    [
        "Offset of field: sat_variant::about",
    ][::core::mem::offset_of!(sat_variant, about) - 88usize];
    [
        "Offset of field: sat_variant::user",
    ][::core::mem::offset_of!(sat_variant, user) - 96usize];
    [
        "Offset of field: sat_variant::supports",
    ][::core::mem::offset_of!(sat_variant, supports) - 104usize];
    [
        "Offset of field: sat_variant::estimate",
    ][::core::mem::offset_of!(sat_variant, estimate) - 112usize];
    [
        "Offset of field: sat_variant::workspace",
    ][::core::mem::offset_of!(sat_variant, workspace) - 120usize];
    [
        "Offset of field: sat_variant::prepare",
    ][::core::mem::offset_of!(sat_variant, prepare) - 128usize];
    [
        "Offset of field: sat_variant::refresh",
    ][::core::mem::offset_of!(sat_variant, refresh) - 136usize];
    [
        "Offset of field: sat_variant::launch",
    ][::core::mem::offset_of!(sat_variant, launch) - 144usize];
    [
        "Offset of field: sat_variant::release",
    ][::core::mem::offset_of!(sat_variant, release) - 152usize];
};
#[repr(C)]
#[derive(Copy, Clone)]
pub union sat_problem__bindgen_ty_1 {
    pub room: [u64; 48usize],
    pub matmul: sat_matmul,
    pub attention: sat_attention,
    pub grouped: sat_grouped,
}
impl Default for sat_device {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_allocator {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_context_options {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_agreement {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_bsr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_dynamic_bsr {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_pattern_view {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_grouped {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_matmul {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_problem__bindgen_ty_1 {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_problem {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_plan_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_result {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_race_options {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_race_info {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_prepare {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_launch {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_instance {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
impl Default for sat_variant {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
unsafe extern "C" {
    pub fn sat_status_name(status: sat_status) -> *const ::core::ffi::c_char;
    pub fn sat_last_error() -> *const ::core::ffi::c_char;
    pub fn sat_version() -> *const ::core::ffi::c_char;
    pub fn sat_context_create(
        options: *const sat_context_options,
        context: *mut *mut sat_context,
    ) -> sat_status;
    pub fn sat_context_free(context: *mut sat_context);
    pub fn sat_context_device(context: *const sat_context) -> *const sat_device;
    pub fn sat_context_effort(context: *const sat_context) -> sat_effort;
    pub fn sat_context_ignored(
        context: *const sat_context,
        text: *mut ::core::ffi::c_char,
        capacity: usize,
    ) -> sat_status;
    pub fn sat_context_measure_rates(context: *mut sat_context) -> sat_status;
    pub fn sat_context_agree(
        context: *mut sat_context,
        agreement: *const sat_agreement,
    ) -> sat_status;
    pub fn sat_agreement_folder(
        folder: *const ::core::ffi::c_char,
        rank: ::core::ffi::c_int,
        world: ::core::ffi::c_int,
        agreement: *mut sat_agreement,
    ) -> sat_status;
    pub fn sat_agreement_folder_free(agreement: *mut sat_agreement);
    pub fn sat_context_wait(context: *mut sat_context) -> sat_status;
    pub fn sat_memory_alloc(
        context: *mut sat_context,
        bytes: usize,
        pointer: *mut *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_memory_free(context: *mut sat_context, pointer: *mut ::core::ffi::c_void);
    pub fn sat_memory_write(
        context: *mut sat_context,
        to: *mut ::core::ffi::c_void,
        host: *const ::core::ffi::c_void,
        bytes: usize,
    ) -> sat_status;
    pub fn sat_memory_read(
        context: *mut sat_context,
        host: *mut ::core::ffi::c_void,
        from: *const ::core::ffi::c_void,
        bytes: usize,
    ) -> sat_status;
    pub fn sat_stream_wait(
        context: *mut sat_context,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_pattern_create(
        context: *mut sat_context,
        indices: *const sat_bsr,
        pattern: *mut *mut sat_pattern,
    ) -> sat_status;
    pub fn sat_pattern_free(pattern: *mut sat_pattern);
    pub fn sat_pattern_create_dynamic(
        context: *mut sat_context,
        indices: *const sat_dynamic_bsr,
        pattern: *mut *mut sat_pattern,
    ) -> sat_status;
    pub fn sat_pattern_fault(pattern: *const sat_pattern, wait: bool) -> sat_status;
    pub fn sat_pattern_get(
        pattern: *const sat_pattern,
        view: *mut sat_pattern_view,
    ) -> sat_status;
    pub fn sat_problem_matmul(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        n: i64,
    ) -> sat_status;
    pub fn sat_problem_sampled(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        k: i64,
    ) -> sat_status;
    pub fn sat_problem_attention(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        heads: i64,
        kv_heads: i64,
        dim: i64,
    ) -> sat_status;
    pub fn sat_problem_attention_backward(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        heads: i64,
        kv_heads: i64,
        dim: i64,
    ) -> sat_status;
    pub fn sat_problem_grouped(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        m: i64,
        n: i64,
        k: i64,
        groups: i64,
    ) -> sat_status;
    pub fn sat_problem_grouped_weights(
        problem: *mut sat_problem,
        dtype: sat_dtype,
        m: i64,
        n: i64,
        k: i64,
        groups: i64,
    ) -> sat_status;
    pub fn sat_plan_create(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        plan: *mut *mut sat_plan,
    ) -> sat_status;
    pub fn sat_plan_create_with(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        variant: *const ::core::ffi::c_char,
        plan: *mut *mut sat_plan,
    ) -> sat_status;
    pub fn sat_plan_dup(plan: *const sat_plan, copy: *mut *mut sat_plan) -> sat_status;
    pub fn sat_plan_free(plan: *mut sat_plan);
    pub fn sat_run(
        plan: *mut sat_plan,
        inputs: *const *const ::core::ffi::c_void,
        input_count: usize,
        outputs: *const *mut ::core::ffi::c_void,
        output_count: usize,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_plan_refresh(
        plan: *mut sat_plan,
        values: *const ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_plan_get_info(
        plan: *const sat_plan,
        info: *mut sat_plan_info,
    ) -> sat_status;
    pub fn sat_bsr_matmul(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        values: *const ::core::ffi::c_void,
        b: *const ::core::ffi::c_void,
        c: *mut ::core::ffi::c_void,
        bias: *const ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_bsr_sampled_matmul(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        x: *const ::core::ffi::c_void,
        y: *const ::core::ffi::c_void,
        values: *mut ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_attention_forward(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        q: *const ::core::ffi::c_void,
        k: *const ::core::ffi::c_void,
        v: *const ::core::ffi::c_void,
        o: *mut ::core::ffi::c_void,
        lse: *mut f32,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_attention_backward(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        q: *const ::core::ffi::c_void,
        k: *const ::core::ffi::c_void,
        v: *const ::core::ffi::c_void,
        o: *const ::core::ffi::c_void,
        lse: *const f32,
        d_o: *const ::core::ffi::c_void,
        dq: *mut ::core::ffi::c_void,
        dk: *mut ::core::ffi::c_void,
        dv: *mut ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_grouped_matmul(
        context: *mut sat_context,
        problem: *const sat_problem,
        x: *const ::core::ffi::c_void,
        w: *const ::core::ffi::c_void,
        offsets: *const ::core::ffi::c_void,
        y: *mut ::core::ffi::c_void,
        bias: *const ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_grouped_weights(
        context: *mut sat_context,
        problem: *const sat_problem,
        x: *const ::core::ffi::c_void,
        z: *const ::core::ffi::c_void,
        offsets: *const ::core::ffi::c_void,
        w: *mut ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_race_run(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        options: *const sat_race_options,
        race: *mut *mut sat_race,
    ) -> sat_status;
    pub fn sat_race_free(race: *mut sat_race);
    pub fn sat_race_count(race: *const sat_race) -> usize;
    pub fn sat_race_at(race: *const sat_race, i: usize) -> *const sat_result;
    pub fn sat_race_best(race: *const sat_race) -> *const sat_result;
    pub fn sat_race_get_info(
        race: *const sat_race,
        info: *mut sat_race_info,
    ) -> sat_status;
    pub fn sat_variant_register(
        context: *mut sat_context,
        variant: *const sat_variant,
    ) -> sat_status;
    pub fn sat_variant_count(context: *const sat_context) -> usize;
    pub fn sat_variant_at(context: *const sat_context, i: usize) -> *const sat_variant;
    pub fn sat_fail(
        status: sat_status,
        format: *const ::core::ffi::c_char,
        ...
    ) -> sat_status;
    pub fn sat_cache_path(context: *const sat_context) -> *const ::core::ffi::c_char;
    pub fn sat_cache_visit(
        context: *mut sat_context,
        visit: sat_cache_visit_fn,
        user: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_cache_export(
        context: *mut sat_context,
        file: *const ::core::ffi::c_char,
    ) -> sat_status;
    pub fn sat_cache_import(
        context: *mut sat_context,
        file: *const ::core::ffi::c_char,
        entries: *mut i64,
    ) -> sat_status;
    pub fn sat_cache_clear(
        context: *mut sat_context,
        key: *const ::core::ffi::c_char,
        entries: *mut i64,
    ) -> sat_status;
    pub fn sat_cache_visit_untuned(
        context: *mut sat_context,
        visit: sat_cache_visit_fn,
        user: *mut ::core::ffi::c_void,
    ) -> sat_status;
    pub fn sat_problem_key(
        context: *mut sat_context,
        pattern: *const sat_pattern,
        problem: *const sat_problem,
        key: *mut ::core::ffi::c_char,
        capacity: usize,
    ) -> sat_status;
}
