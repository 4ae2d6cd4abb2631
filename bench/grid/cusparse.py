"""cuSPARSE's own product on BSR and on Blocked-ELL, called by ctypes: torch offers neither as it is.

Matrices are described once; a call sets the stream and multiplies into memory that is allocated by torch.
"""

import ctypes

AS_IT_IS, INDEX_32, BASE_ZERO, COL_MAJOR, ROW_MAJOR = 0, 2, 0, 1, 2
SPMM_BLOCKED_ELL, SPMM_BSR = 13, 14
MOST_ELL_PADDING = 4.0  # times what is stored

ELL_COLUMNS = 16  # of the result, a multiple of it: the library stores several at once, and past the last one

_library = []


def library():
    """The one that torch has loaded."""
    if not _library:
        with open("/proc/self/maps") as f:
            paths = {line.split()[-1] for line in f if "libcusparse.so" in line}
        if not paths:
            raise NotImplementedError("torch has not loaded cuSPARSE")
        loaded = ctypes.CDLL(paths.pop())
        handle = ctypes.c_void_p()
        loaded.cusparseGetErrorString.restype = ctypes.c_char_p
        _library.extend([loaded, handle])
        check(loaded.cusparseCreate(ctypes.byref(handle)))
    return _library


def check(status):
    if status:
        raise NotImplementedError(f"cuSPARSE: {_library[0].cusparseGetErrorString(status).decode()}")


def pointer(tensor):
    return ctypes.c_void_p(tensor.data_ptr())


def size(number):
    return ctypes.c_int64(number)


def data_type(torch, dtype):
    return {torch.float32: 0, torch.float64: 1, torch.float16: 2, torch.bfloat16: 14}[dtype]


def aligned(block, d, columns=1):
    """D, where the library takes it: square blocks, several columns, addresses that are multiples of 16."""
    if block[0] != block[1]:
        raise NotImplementedError("cuSPARSE multiplies square blocks alone")
    if d.shape[1] < 2 or d.shape[1] % columns:
        raise NotImplementedError(f"cuSPARSE with {d.shape[1]} columns")
    leading = max(d.stride()) * d.element_size()
    if d.data_ptr() % 16 or (columns > 1 and leading % 16):
        raise NotImplementedError("cuSPARSE wants addresses that are multiples of 16")
    return d


class Spmm:
    """S*D, where S is described already."""

    def __init__(self, torch, sparse, shape, d, algorithm, keep):
        self.torch, self.sparse, self.algorithm, self.keep = torch, sparse, algorithm, (keep, d)
        self.loaded, self.handle = library()
        self.shape, self.kind = (shape[0], d.shape[1]), d.dtype
        double = d.dtype == torch.float64
        self.compute = 1 if double else 0
        scalar = ctypes.c_double if double else ctypes.c_float
        self.one, self.zero = scalar(1), scalar(0)
        self.dense = self.describe(d)
        out = torch.empty(self.shape, device=d.device, dtype=d.dtype)
        self.result, needed = self.describe(out), ctypes.c_size_t()
        check(self.loaded.cusparseSpMM_bufferSize(*self.words(), ctypes.byref(needed)))
        self.buffer = torch.empty(max(needed.value, 16), device=d.device, dtype=torch.uint8)

    def describe(self, x):
        rows, cols = x.shape
        row_major = x.stride(1) == 1 or cols == 1
        leading = max(x.stride(0) if row_major else x.stride(1), cols if row_major else rows)
        made = ctypes.c_void_p()
        check(
            self.loaded.cusparseCreateDnMat(
                ctypes.byref(made),
                size(rows),
                size(cols),
                size(leading),
                pointer(x),
                data_type(self.torch, x.dtype),
                ROW_MAJOR if row_major else COL_MAJOR,
            )
        )
        return made

    def words(self):
        return (
            self.handle,
            AS_IT_IS,
            AS_IT_IS,
            ctypes.byref(self.one),
            self.sparse,
            self.dense,
            ctypes.byref(self.zero),
            self.result,
            self.compute,
            self.algorithm,
        )

    def __call__(self):
        torch = self.torch
        out = torch.empty(self.shape, device="cuda", dtype=self.kind)
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        check(self.loaded.cusparseSetStream(self.handle, stream))
        check(self.loaded.cusparseDnMatSetValues(self.result, pointer(out)))
        check(self.loaded.cusparseSpMM(*self.words(), pointer(self.buffer)))
        return out

    def __del__(self):
        self.loaded.cusparseDestroySpMat(self.sparse)
        for made in (self.dense, self.result):
            self.loaded.cusparseDestroyDnMat(made)


def bsr(torch, row_ptr, col_idx, values, grid, block, padded):
    shape = (grid[0] * block[0], grid[1] * block[1])
    d = aligned(block, padded(shape[1]))
    pointers, columns = (torch.from_numpy(x).int().to(values.device) for x in (row_ptr, col_idx))
    made = ctypes.c_void_p()
    check(
        library()[0].cusparseCreateBsr(
            ctypes.byref(made),
            size(grid[0]),
            size(grid[1]),
            size(len(col_idx)),
            size(block[0]),
            size(block[1]),
            pointer(pointers),
            pointer(columns),
            pointer(values),
            INDEX_32,
            INDEX_32,
            BASE_ZERO,
            data_type(torch, values.dtype),
            ROW_MAJOR,
        )
    )
    return Spmm(torch, made, shape, d, SPMM_BSR, (pointers, columns, values))


def ell(torch, np, row_ptr, col_idx, values, grid, block, padded):
    """Rows that are shorter than the longest are filled up with column -1."""
    shape = (grid[0] * block[0], grid[1] * block[1])
    d = aligned(block, padded(shape[1]), ELL_COLUMNS)
    counts = np.diff(row_ptr)
    width = int(counts.max())
    if width * grid[0] > MOST_ELL_PADDING * len(col_idx):
        raise NotImplementedError("Blocked-ELL would be mostly padding")
    rows = np.repeat(np.arange(grid[0]), counts)
    places = np.arange(len(col_idx)) - row_ptr[rows]
    columns = np.full((grid[0], width), -1, np.int32)
    columns[rows, places] = col_idx
    device, side = values.device, block[0]
    there = torch.from_numpy(columns).to(device)
    held = torch.zeros(grid[0], side, width, side, device=device, dtype=values.dtype)
    at, to = (torch.from_numpy(x).to(device) for x in (rows, places))
    held.permute(0, 2, 1, 3)[at, to] = values
    made = ctypes.c_void_p()
    check(
        library()[0].cusparseCreateBlockedEll(
            ctypes.byref(made),
            size(shape[0]),
            size(shape[1]),
            size(side),
            size(width * side),
            pointer(there),
            pointer(held),
            INDEX_32,
            BASE_ZERO,
            data_type(torch, values.dtype),
        )
    )
    return Spmm(torch, made, shape, d, SPMM_BLOCKED_ELL, (there, held))
