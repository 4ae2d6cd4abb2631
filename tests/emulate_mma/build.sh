cd tests/emulate_mma; python3 make.py
CUI=./build-cuda/cuda/lib/python3.11/site-packages/nvidia/cu13/include
for f in emu.cpp shim/kernels/cuda/attention/attention_mma_f32.cpp shim/kernels/cuda/attention/attention_split.cpp shim/kernels/cuda/attention/attention_backward_mma_f32.cpp shim/kernels/cuda/attention/attention_device.cpp; do o=$(basename $f .cpp).o; nice g++ -O1 -std=c++20 -fPIC -w -fno-exceptions -fno-threadsafe-statics -DSAT_HAVE_CUDA -Ishim -I./include -I./src -I$CUI -c $f -o $o 2>&1 | grep -E "error|required" | head -${1:-12}; done
g++ -shared -o emu.so emu.o attention_mma_f32.o attention_split.o attention_backward_mma_f32.o attention_device.o
