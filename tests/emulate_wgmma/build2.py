import re,os
R='./src/'
os.makedirs('backend',exist_ok=True)
def conv(s):
    while '<<<' in s:
        i=s.index('<<<'); j=s.index('>>>(',i)
        # kernel name back
        k=i
        depth=0
        while True:
            c=s[k-1]
            if c=='>': depth+=1
            elif c=='<': depth-=1
            elif depth==0 and not (c.isalnum() or c=='_'): break
            k-=1
        name=s[k:i]; cfg=s[i+3:j]
        # split cfg top-level
        parts=[];d=0;cur=''
        for c in cfg:
            if c in '([': d+=1
            if c in ')]': d-=1
            if c==',' and d==0: parts.append(cur);cur='';continue
            cur+=c
        parts.append(cur)
        e=j+4;d=1
        while d:
            if s[e]=='(': d+=1
            if s[e]==')': d-=1
            e+=1
        args=s[j+4:e-1]
        s=s[:k]+'emu_launch('+parts[0]+','+parts[1]+',[&](auto... a_){ '+name+'(a_...); }, '+args+')'+s[e:]
    return s
for f in ('kernels/cuda/grouped/grouped_tiled.cu','kernels/cuda/grouped/grouped_reference.cu','backend/cuda_check_grouped.cu'):
    open(f,'w').write(conv(open(R+f).read()))
open('cuda_runtime_api.h','w').write('')
v=open('variant.cuh').read()
if 'sat_launched' not in v:
    v=v.replace('template <auto KERNEL','static inline sat_status sat_launched(const sat_launch *) { return SAT_OK; }\ntemplate <typename F, typename... A> void emu_launch(unsigned g, int t, F f, A... a) { emu_run(g, t, 0, [&] { f(a...); }); }\ntemplate <auto KERNEL',1)
    # sat_blocks is cut with the launching part? keep
    open('variant.cuh','w').write(v)
