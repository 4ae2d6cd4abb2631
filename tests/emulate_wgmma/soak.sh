cd tests/emulate_wgmma; rm -f soak.txt
for seed in $(seq 1 40); do for a in "1 64 256 0" "1 128 256 0" "1 128 128 0" "1 64 128 0" "1 128 256 1" "1 128 128 1" "1 64 256 1" "1 64 128 1" "0 128 128 0" "0 64 128 0" "0 16 128 0" "0 128 128 1" "0 64 128 1"; do nice timeout 120 ./emu $seed $a 6 >> soak.txt 2>&1 || echo "FAILED $seed $a" >> soak.txt; done; done; echo done >> soak.txt
