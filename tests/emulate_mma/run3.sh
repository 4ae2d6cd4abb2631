P=._cpu/sparse_autotune; cd tests/emulate_mma
for v in cpu_attention_backward_f32_any_emu_16x64 cpu_attention_f32_any_emu_16x64_split cpu_attention_f32_any_emu_64x32 cpu_attention_backward_f32_any_emu_64x32; do nice timeout 400 $P check --plugin ./emu.so --only $v --cases 60 --sides 900 --seed 31 --timeout 400 2>&1 | tail -4; done > long3.log 2>&1
