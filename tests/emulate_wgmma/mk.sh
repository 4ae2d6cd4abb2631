cd tests/emulate_wgmma && python3 build.py
CF="-std=c++20 -O2 -w -D__CUDACC__ -include emu.h -Itests/emulate_wgmma -I./src -I./include"
g++ -g $CF -c emu.cpp -o emu.o; g++ $CF -c main.cpp -o main.o; g++ $CF -x c++ -c kernels/cuda/grouped/grouped_mma.cu -o mma.o 2>&1 | grep error;  g++ $CF -x c++ -c kernels/cuda/grouped/grouped_wgmma_sm90.cu -o wgmma.o 2>&1 | grep error; g++ -no-pie emu.o main.o mma.o wgmma.o -o emu -lm
