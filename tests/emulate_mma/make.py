import re,pathlib
src=pathlib.Path('./src/kernels/cuda/attention'); out=pathlib.Path('tests/emulate_mma/shim/kernels/cuda/attention')
for f in ['attention_device.cuh','attention_mma.cuh','attention_mma_f32.cuh','attention_mma_f32.cu','attention_split.cu','attention_backward_mma_f32.cu','attention_device.cu']:
    s=(src/f).read_text()
    s=re.sub(r'extern __shared__ __align__\(\d+\) char memory\[\];','char *memory = emu_smem;',s)
    s=re.sub(r'__shared__ (\w+ \w+;)',r'static \1',s)
    s=re.sub(r'asm volatile\(\s*"st\.shared\.b32 \[%0\], %1;" ::"r"\((.*?)\), "r"\((.*?)\) : "memory"\);',r'emu_st32(\1, \2);',s,flags=re.S)
    s=re.sub(r'asm volatile\(\s*"st\.shared\.v4\.f32[^"]*"\s*::"r"\((.*?)\),\s*"f"\((.*?)\), "f"\((.*?)\), "f"\((.*?)\), "f"\((.*?)\)\s*: "memory"\);',r'emu_st128(\1, \2, \3, \4, \5);',s,flags=re.S)
    s=re.sub(r'([\w>.\-]+)<<<(.*?)>>>\(\s*(.*?)\);',r'emu_launch(\1, EMU_CONFIG(\2), \3);',s,flags=re.S)
    s=re.sub(r'\n[^\n]*instance_of<sat_b?f16_math[^\n]*',lambda m: '\n' if 'tf32' not in m.group(0) else m.group(0),s)
    s=re.sub(r'instance_of<sat_b?f16_math, tile_shape<[^>]*>>\(\),','',s)
    s=s.replace('__syncthreads();','__syncthreads();').replace('#pragma unroll 8','').replace('#pragma unroll 1','').replace('#pragma unroll 4','').replace('#pragma unroll','')
    (out/(f.replace('.cu','.cpp') if f.endswith('.cu') else f)).write_text(s)
