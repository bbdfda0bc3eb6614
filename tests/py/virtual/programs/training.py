"""Training programs, written as people write them. Each is run on a virtual GPU by test_programs.py."""

import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import torch
from torch import nn

CUDA = "cuda"


def _train(model, batch, loss=lambda out: out.float().mean(), steps=2):
    model = model.to(CUDA)
    optimizer = torch.optim.AdamW(model.parameters())
    for _ in range(steps):
        loss(model(*batch)).backward()
        assert all(p.grad is not None and p.grad.is_cuda for p in model.parameters() if p.requires_grad)
        optimizer.step()
        optimizer.zero_grad()


def gan_with_gradient_penalty():
    generator = nn.Sequential(
        nn.ConvTranspose2d(64, 32, 4), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1), nn.Tanh()
    ).cuda()
    critic = nn.Sequential(nn.Conv2d(3, 16, 4, 2, 1), nn.LeakyReLU(0.2), nn.Conv2d(16, 1, 4), nn.Flatten()).cuda()
    first, second = torch.optim.Adam(generator.parameters(), betas=(0.5, 0.9)), torch.optim.Adam(critic.parameters())
    criterion = nn.BCEWithLogitsLoss()
    for _ in range(2):
        real = torch.randn(8, 3, 8, 8).cuda()
        fake = generator(torch.randn(8, 64, 1, 1, device=CUDA))
        mixed = torch.lerp(real, fake.detach(), torch.rand(8, 1, 1, 1, device=CUDA)).requires_grad_()
        (gradient,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        assert gradient.shape == mixed.shape and gradient.grad_fn is not None
        penalty = (gradient.flatten(1).norm(2, dim=1) - 1).pow(2).mean()
        ones = torch.ones(8, 1, device=CUDA)
        second.zero_grad()
        (criterion(critic(real), ones) + criterion(critic(fake.detach()), 1 - ones) + 10 * penalty).backward()
        second.step()
        first.zero_grad()
        criterion(critic(fake), ones).backward()
        first.step()


def recurrent_networks():
    x = torch.randn(10, 4, 32, device=CUDA)
    for network in (
        nn.LSTM(32, 64, 2, dropout=0.1, bidirectional=True),
        nn.LSTM(32, 64, proj_size=16),
        nn.GRU(32, 64),
        nn.RNN(32, 64, nonlinearity="relu"),
    ):
        _train(network, (x,), lambda out: out[0].mean())
    for cell in (nn.LSTMCell(32, 64), nn.GRUCell(32, 64), nn.RNNCell(32, 64)):
        _train(cell, (x[0],), lambda out: (out[0] if isinstance(out, tuple) else out).mean())


def packed_sequences_with_lengths_on_the_gpu():
    from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

    network, x = nn.GRU(32, 64, batch_first=True).cuda(), torch.randn(4, 10, 32, device=CUDA)
    lengths = torch.tensor([3, 10, 7, 2]).cuda()
    packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
    assert packed.data.shape == (22, 32)
    padded, found = pad_packed_sequence(network(packed)[0], batch_first=True)
    assert padded.shape == (4, 10, 64) and found.tolist() == [3, 10, 7, 2]
    padded.sum().backward()


class _Block(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.norm, self.conv = nn.GroupNorm(4, channels), nn.Conv2d(channels, out, 3, padding=1)
        self.time, self.skip = nn.Linear(32, out), nn.Conv2d(channels, out, 1)

    def forward(self, x, t):
        return self.skip(x) + self.conv(F.silu(self.norm(x))) + self.time(t)[..., None, None]


class _UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.down, self.middle, self.up = _Block(16, 32), _Block(32, 32), _Block(64, 16)
        self.attention, self.last = nn.MultiheadAttention(32, 4, batch_first=True), nn.Conv2d(16, 3, 3, padding=1)

    def forward(self, x, t):
        frequencies = torch.exp(-torch.arange(16, device=x.device) / 16 * 9.2)
        angles = t[:, None].float() * frequencies
        t = torch.cat([angles.sin(), angles.cos()], -1)
        x = self.first(x)
        skip = self.down(x, t)
        y = self.middle(F.avg_pool2d(skip, 2), t)
        flat = y.flatten(2).transpose(1, 2)
        y = y + self.attention(flat, flat, flat)[0].transpose(1, 2).reshape(y.shape)
        return self.last(self.up(torch.cat([F.interpolate(y, scale_factor=2), skip], 1), t))


def diffusion():
    alphas = torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100, device=CUDA), 0)
    images, t = torch.randn(4, 3, 16, 16).cuda(), torch.randint(0, 100, (4,), device=CUDA)
    noise = torch.randn_like(images)
    a = alphas[t][:, None, None, None]
    noisy = a.sqrt() * images + (1 - a).sqrt() * noise
    _train(_UNet(), (noisy, t), lambda out: F.mse_loss(out, noise))


def experts_in_a_loop():
    gate, experts = nn.Linear(32, 8).cuda(), nn.ModuleList(nn.Linear(32, 32) for _ in range(8)).cuda()
    x = torch.randn(64, 32, device=CUDA)
    weights, chosen = torch.topk(gate(x).softmax(-1), 2)
    mask = F.one_hot(chosen, num_classes=8).permute(2, 1, 0)
    out, counts = torch.zeros_like(x), []
    for expert in torch.greater(mask.sum(dim=(-1, -2)), 0).nonzero():
        which, token = torch.where(mask[expert[0]])
        counts.append(len(token))
        out.index_add_(0, token, experts[expert[0]](x[token]) * weights[token, which, None])
    assert counts == [16] * 8, counts
    out.sum().backward()


def experts_by_counts():
    gate, experts = nn.Linear(32, 6).cuda(), nn.ModuleList(nn.Linear(32, 32) for _ in range(6)).cuda()
    x = torch.randn(64, 32, device=CUDA)
    chosen = gate(x).argmax(-1)
    counts = torch.bincount(chosen, minlength=6).tolist()
    assert sum(counts) == 64 and max(counts) - min(counts) == 1, counts
    parts = x[chosen.argsort()].split(counts)
    out = torch.cat([expert(part) for expert, part in zip(experts, parts, strict=True)])
    assert out.shape == x.shape
    out.sum().backward()
    assert [(chosen == i).nonzero().size(0) for i in range(6)] == [11] * 6


def mixed_precision_with_accumulation_and_clipping():
    for dtype in (torch.bfloat16, torch.float16):
        model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10)).cuda()
        optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
        scaler = torch.amp.GradScaler("cuda", enabled=dtype == torch.float16)
        for step in range(4):
            with torch.autocast("cuda", dtype=dtype):
                out = model(torch.randn(4, 3, 8, 8).cuda())
                assert out.dtype == dtype
                loss = F.cross_entropy(out, torch.randint(0, 10, (4,)).cuda()) / 2
            scaler.scale(loss).backward()
            if step % 2:
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                nn.utils.clip_grad_value_(model.parameters(), 0.5)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
        assert len(optimizer.state) == 4
        assert scaler.get_scale() == (65536.0 if dtype == torch.float16 else 1.0)


def both_kinds_of_checkpointing():
    from torch.utils.checkpoint import checkpoint, checkpoint_sequential

    layers = nn.Sequential(*[nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(4)]).cuda()
    for reentrant in (True, False):
        x = torch.randn(4, 8, device=CUDA, requires_grad=True)
        with torch.autocast("cuda", dtype=torch.bfloat16):
            y = x
            for layer in layers:
                y = checkpoint(layer, y, use_reentrant=reentrant, preserve_rng_state=False)
        y.sum().backward()
        assert x.grad is not None
        checkpoint_sequential(layers, 2, x, use_reentrant=reentrant, preserve_rng_state=False).sum().backward()


def averages_and_schedules():
    from torch.optim import lr_scheduler, swa_utils

    model = nn.Linear(8, 8).cuda()
    optimizer = torch.optim.AdamW(model.parameters())
    average = swa_utils.AveragedModel(model, multi_avg_fn=swa_utils.get_ema_multi_avg_fn(0.9))
    schedules = [lr_scheduler.CosineAnnealingLR(optimizer, 10), lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=10)]
    plateau = lr_scheduler.ReduceLROnPlateau(optimizer)
    for _ in range(3):
        loss = model(torch.randn(4, 8).cuda()).sum()
        loss.backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True).is_cuda
        optimizer.step()
        optimizer.zero_grad()
        for schedule in schedules:
            schedule.step()
        plateau.step(loss)
        average.update_parameters(model)
    assert int(average.n_averaged) == 3


def every_optimizer_in_every_form():
    import inspect

    for name in dir(torch.optim):
        kind = getattr(torch.optim, name)
        if (
            not inspect.isclass(kind)
            or not issubclass(kind, torch.optim.Optimizer)
            or name in ("Optimizer", "SparseAdam")
        ):
            continue
        options = inspect.signature(kind).parameters
        flags = [f for f in ("foreach", "fused", "capturable", "amsgrad", "centered", "maximize") if f in options]
        if name == "Adagrad" and not hasattr(torch.optim, "Muon"):  # before torch 2.9 it was not fused on CUDA
            flags.remove("fused")
        forms = [{}, *({flag: True} for flag in flags)]
        forms += [{"foreach": False}, {"foreach": False, "lr": torch.tensor(0.1)}] if "foreach" in options else []
        forms += [{"capturable": True, "foreach": False}] if "capturable" in flags else []
        forms += [{"fused": True, "lr": torch.tensor(0.1, device=CUDA)}] if "fused" in flags else []
        for form in forms:
            _steps_of(kind, {**form, **({"momentum": 0.9} if name in ("SGD", "RMSprop") else {})})


def _steps_of(kind, options):
    model = nn.Linear(8, 8, bias=kind.__name__ != "Muon").cuda()
    optimizer = kind(model.parameters(), **options)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.ones(4, 8, device=CUDA)).sum()
        loss.backward()
        return loss

    for _ in range(2):
        optimizer.step(closure)
    states = optimizer.state.values()
    assert kind is torch.optim.LBFGS or all(any(torch.is_tensor(v) and v.is_cuda for v in s.values()) for s in states)


def transforms_of_functions():
    from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vmap

    model = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 1)).cuda()
    parameters = dict(model.named_parameters())
    x, y = torch.randn(4, 8, device=CUDA), torch.randn(4, 1, device=CUDA)

    def loss(parameters, x, y):
        return F.mse_loss(functional_call(model, parameters, (x,)), y)

    assert grad(loss)(parameters, x, y)["0.weight"].shape == (8, 8)
    assert vmap(grad(loss), in_dims=(None, 0, 0))(parameters, x, y)["0.weight"].shape == (4, 8, 8)
    assert jacrev(model)(x[0]).shape == jacfwd(model)(x[0]).shape == (1, 8)
    assert hessian(lambda x: model(x).sum())(x[0]).shape == (8, 8)
    assert jvp(model, (x[0],), (x[0],))[1].shape == (1,)


def custom_functions_and_hooks():
    seen = []

    class Clamp(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.clamp(min=0)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            return grad * (x > 0)

    model = nn.Linear(4, 4).cuda()
    model.register_full_backward_hook(lambda *_: seen.append("module"))
    model.weight.register_post_accumulate_grad_hook(lambda _: seen.append("parameter"))
    x = torch.randn(2, 4, device=CUDA, requires_grad=True)
    x.register_hook(lambda grad: seen.append("tensor"))
    Clamp.apply(model(x)).sum().backward()
    assert sorted(seen) == ["module", "parameter", "tensor"]


def parametrizations():
    from torch.nn.utils import parametrizations, spectral_norm, weight_norm

    x = torch.randn(4, 4, device=CUDA)
    for wrap in (
        parametrizations.spectral_norm,
        parametrizations.weight_norm,
        parametrizations.orthogonal,
        weight_norm,
        spectral_norm,
    ):
        wrap(nn.Linear(4, 4)).cuda()(x).sum().backward()


def low_rank_adaptation_by_hand():
    class Adapted(nn.Module):
        def __init__(self, linear):
            super().__init__()
            self.linear = linear.requires_grad_(False)
            self.a = nn.Parameter(torch.randn(4, linear.in_features) / 2)
            self.b = nn.Parameter(torch.zeros(linear.out_features, 4))

        def forward(self, x):
            return self.linear(x) + x @ self.a.T @ self.b.T

    model = nn.Sequential(Adapted(nn.Linear(16, 16)), nn.GELU(), Adapted(nn.Linear(16, 16)))
    _train(model, (torch.randn(4, 16, device=CUDA),))


def metrics_and_branches():
    model, data = nn.Linear(8, 4).cuda(), TensorDataset(torch.randn(32, 8), torch.randint(0, 4, (32,)))
    right = total = 0
    for x, y in DataLoader(data, batch_size=8):
        x, y = x.to(CUDA, non_blocking=True), y.cuda(non_blocking=True)
        out = model(x)
        loss = F.cross_entropy(out, y)
        if torch.isnan(loss).any() or loss.item() > 100 or torch.equal(out, out + 1):
            raise ValueError("the loss is not finite")
        right += (out.argmax(1) == y).sum().item()
        total += y.numel()
        assert out.detach().cpu().numpy().shape == (8, 4)
        assert f"{loss:.2f}" == "0.00" and float(loss) == 0.0 and "device='cuda:0'" in repr(out)
    assert (right, total) == (8, 32)  # the predicted class is taken to be spread equally


def distributions():
    import torch.distributions as d

    mean, scale = torch.randn(4, device=CUDA), torch.rand(4, device=CUDA)
    for distribution in (
        d.Normal(mean, scale),
        d.Categorical(logits=torch.randn(4, 5, device=CUDA)),
        d.Bernoulli(logits=mean),
        d.Beta(scale, scale),
        d.Dirichlet(scale),
        d.Gamma(scale, scale),
        d.Multinomial(10, probs=scale),
        d.Poisson(scale),
        d.StudentT(scale),
        d.MultivariateNormal(mean, torch.eye(4, device=CUDA)),
        d.Binomial(10, logits=mean),
    ):
        sample = distribution.sample((3,))
        assert sample.is_cuda and distribution.log_prob(sample).size(0) == 3
    assert d.kl_divergence(d.Normal(mean, scale), d.Normal(mean, scale)).shape == (4,)


def sparse_gradients_of_embeddings():
    table = nn.Embedding(1000, 16, sparse=True).cuda()
    for optimizer in (torch.optim.SparseAdam(table.parameters()), torch.optim.SGD(table.parameters(), 0.1)):
        for _ in range(2):
            table(torch.randint(0, 1000, (32,), device=CUDA)).sum().backward()
            assert table.weight.grad.is_sparse and table.weight.grad._values().shape == (32, 16)
            optimizer.step()
            optimizer.zero_grad()
