from try_it import *
importlib.import_module("all")
rules={l.split()[0] for l in open("/work/exam_runs/rules.txt") if l.startswith(" ") and len(l)>1 and l[1].isalpha() }
out={"faults":{}, "healthy":{}}
s3=lambda a: float('%.4g'%a) if math.isfinite(a) else str(a)
for n,f in FAULTS.items():
    b=go(f.run); t=go(f.run,broken=False)
    assert set(f.rules)<=rules,(n,set(f.rules)-rules)
    names=dict(b.m.named_modules()); assert all(l in names for l in f.layers),n
    first=next((i for i,(x,y) in enumerate(zip(b.v,t.v)) if x!=y and not (x!=x and y!=y)),None)
    d=dict(step=f.step,steps=f.steps,ms_per_step=s3(b.t),first_step_whose_loss_differs_from_twin=first,
      broken_before=s3(mean(b.v[max(0,f.step-50):f.step])),broken_end=s3(mean(b.v[-100:])),twin_end=s3(mean(t.v[-100:])))
    if b.val: d["broken_validation_end"]=s3(mean([v for _,v in b.val[-4:]])); d["twin_validation_end"]=s3(mean([v for _,v in t.val[-4:]]))
    out["faults"][n]=d; print(n,d,flush=True)
for n,f in HEALTHY.items():
    b=go(f.run); assert len(b.v)==f.steps and all(map(math.isfinite,b.v))
    d=dict(steps=f.steps,ms_per_step=s3(b.t),first10=s3(mean(b.v[:10])),end=s3(mean(b.v[-100:])))
    if b.val: d["validation_first"]=s3(b.val[0][1]); d["validation_min"]=s3(min(v for _,v in b.val)); d["validation_end"]=s3(mean([v for _,v in b.val[-3:]]))
    if hasattr(f.run,"rewards"): d["reward_first"]=s3(mean(f.run.rewards[:20])); d["reward_end"]=s3(mean(f.run.rewards[-100:]))
    out["healthy"][n]=d; print(n,d,flush=True)
import rne_healthy_a as A, rne_healthy_b as B
with torch.no_grad():
    torch.manual_seed(0)
    x=A.gan_critic.generator(torch.randn(4000,4)) if hasattr(A.gan_critic,"generator") else None
    out["healthy"]["gan_critic"]["generated_std_vs_real"]=[[round(v,3) for v in x.std(0).tolist()],[1.061,.566]]
    q,mix=B.moving_targets.parts
    s=torch.randn(300,4); z=s.repeat(200,1); v=0
    for k in range(40):
        v=v+.8**k*(torch.tanh(z[:,:1])+.5); z=z@mix+.3*torch.randn(z.shape)
    v=v.view(200,300,1).mean(0)
    out["healthy"]["moving_targets"]["correlation_with_true_value"]=round(torch.corrcoef(torch.cat([v,q(s)],1).T)[0,1].item(),4)
r=go(FAULTS["sensor_net"].run)
h=torch.randn(2000,10); dead=[]
with torch.no_grad():
    for m in r.m.trunk:
        h=m(h)
        if isinstance(m,torch.nn.ReLU): dead.append((h<=0).all(0).float().mean().item())
out["faults"]["sensor_net"]["dead_share_per_relu_at_end"]=dead; print(dead)
out["faults"]["shrinking_scale"]["note"]="half of the weights' gradients are exactly 0 at step 348, all at step 396"
out["deterministic"]=go(FAULTS["waves_and_labels"].run).v==go(FAULTS["waves_and_labels"].run).v and go(HEALTHY["many_epochs"].run).v==go(HEALTHY["many_epochs"].run).v
json.dump(out,open("verified.json","w"),indent=1); print(len(FAULTS),len(HEALTHY),out["deterministic"])
