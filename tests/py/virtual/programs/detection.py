"""Detection with torchvision, whose operators are not torch's own. Each is run by test_programs.py."""

import torchvision
from torchvision import ops
from torchvision.models import detection

import torch
from torch import nn

CUDA = "cuda"


def _peak_of(function):
    """What a call takes at most, beside what was there."""
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    function()
    return torch.cuda.max_memory_allocated() - before


def _targets(masks):
    boxes = torch.tensor([[10.0, 10.0, 100.0, 120.0], [50.0, 40.0, 200.0, 220.0]]).cuda()
    target = {"boxes": boxes, "labels": torch.tensor([1, 2]).cuda()}
    return [{**target, "masks": torch.zeros(2, 240, 320, dtype=torch.uint8).cuda()} if masks else dict(target)] * 2


def _train_and_validate(model, masks=False):
    model.cuda().train()
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.01)
    for _ in range(2):
        losses = model([torch.rand(3, 240, 320).cuda() for _ in range(2)], _targets(masks))
        optimizer.zero_grad()
        sum(losses.values()).backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        (found,) = model([torch.rand(3, 240, 320).cuda()])
    assert len(found["boxes"]) == len(found["scores"].cpu()) == len(found["labels"].tolist()) > 0
    return found


def faster_rcnn():
    _train_and_validate(
        detection.fasterrcnn_mobilenet_v3_large_320_fpn(weights=None, weights_backbone=None, num_classes=5)
    )


def mask_rcnn():
    model = detection.maskrcnn_resnet50_fpn(
        weights=None, weights_backbone=None, num_classes=5, min_size=160, max_size=256
    )
    assert _train_and_validate(model, masks=True)["masks"].shape[1:] == (1, 240, 320)


class _Yolo(nn.Module):
    """A grid of cells, each with the box, objectness and classes of an anchor."""

    def __init__(self, classes=4):
        super().__init__()
        sizes = [3, 16, 32, 64, 64]
        layers = [
            nn.Sequential(nn.Conv2d(i, o, 3, 2, 1, bias=False), nn.BatchNorm2d(o), nn.SiLU())
            for i, o in zip(sizes, sizes[1:])
        ]
        self.layers, self.head = nn.Sequential(*layers), nn.Conv2d(64, 5 + classes, 1)

    def forward(self, x):
        return self.head(self.layers(x)).flatten(2).transpose(1, 2)


def yolo():
    model = _Yolo().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(2):
        out = model(torch.rand(4, 3, 256, 256).cuda())
        wanted = torch.rand(4, 256, 4).cuda()
        boxes = ops.box_convert(out[..., :4].sigmoid(), "cxcywh", "xyxy")
        loss = ops.complete_box_iou_loss(boxes, wanted, reduction="mean") + ops.sigmoid_focal_loss(
            out[..., 4:], torch.zeros_like(out[..., 4:]), reduction="mean"
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval()
    with torch.no_grad():
        for image in model(torch.rand(2, 3, 256, 256).cuda()):
            sure = image[image[:, 4].sigmoid() > 0.25]
            boxes, (scores, labels) = ops.box_convert(sure[:, :4], "cxcywh", "xyxy"), sure[:, 5:].max(1)
            kept = ops.batched_nms(boxes, scores, labels, 0.5)[:100]
            assert kept.numel() > 0 and boxes[kept].cpu().shape == (kept.numel(), 4)


def regions_have_gradients():
    rois = torch.rand(10, 5).cuda()
    for pool, channels in ((ops.roi_align, 8), (ops.roi_pool, 8), (ops.ps_roi_align, 98), (ops.ps_roi_pool, 98)):
        x = torch.rand(2, channels, 32, 32, device=CUDA, requires_grad=True)
        out = pool(x, rois, 7)
        out.sum().backward()
        assert out.shape == (10, 8 if channels == 8 else 2, 7, 7) and x.grad.shape == x.shape
        channels_last = x.detach().contiguous(memory_format=torch.channels_last)
        of_copy = _peak_of(lambda: pool(channels_last, rois, 7)) - _peak_of(lambda: pool(x.detach(), rois, 7))
        assert of_copy == -(-x.nbytes // 512) * 512, of_copy


def nms_has_a_bit_for_each_pair():
    count = 1 << 13
    boxes, scores = torch.rand(count, 4).cuda(), torch.rand(count).cuda()
    kept = ops.nms(boxes, scores, 0.5)
    assert kept.dtype == torch.int64 and kept.numel() == count // 2
    mask, order = count * count // 8, 8 * count
    least = mask + order + boxes.nbytes + count  # and the booleans of what is kept
    assert least < _peak_of(lambda: ops.nms(boxes, scores, 0.5)) <= least + 2 * order
    assert ops.nms(boxes[:0], scores[:0], 0.5).numel() == 0


def deformable_convolutions_take_columns():
    x = torch.rand(8, 64, 32, 32, device=CUDA, requires_grad=True)
    offset = torch.rand(8, 18, 32, 32, device=CUDA, requires_grad=True)
    mask = torch.rand(8, 9, 32, 32, device=CUDA, requires_grad=True)
    layer = ops.DeformConv2d(64, 64, 3, padding=1).cuda()
    columns = 9 * x.nbytes
    layer(x, offset, mask)  # cuBLAS has its workspace
    with torch.no_grad():
        taken = _peak_of(lambda: layer(x, offset, mask))
    assert columns + 2 * x.nbytes <= taken <= columns + 4 * x.nbytes, (taken, columns)
    out = layer(x, offset, mask)
    assert out.shape == (8, 64, 32, 32)
    assert columns < _peak_of(lambda: out.sum().backward()) < columns + 6 * x.nbytes
    assert (x.grad.shape, offset.grad.shape, mask.grad.shape) == (x.shape, offset.shape, mask.shape)
    assert layer.weight.grad.shape == layer.weight.shape
    ops.deform_conv2d(x, offset, layer.weight, padding=1).sum().backward()


def other_models_of_torchvision_run():
    assert torchvision.__version__
    for name in ("retinanet_resnet50_fpn", "ssdlite320_mobilenet_v3_large", "fcos_resnet50_fpn"):
        sizes = {} if name.startswith("ssd") else {"min_size": 160, "max_size": 256}
        model = getattr(detection, name)(weights=None, weights_backbone=None, num_classes=5, **sizes)
        _train_and_validate(model)
