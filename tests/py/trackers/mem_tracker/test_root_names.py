"""Root modules of one class that are alive at once are told apart in figures: by the variable that holds them, else by
a number. Members of a module that is not called are shown below it. The trackers' own names stay as torch's."""

import copy
import gc
import weakref

import pytest
from memory_helpers import CPU, every_source, parameter_bytes
from modscope import MemTracker, ModTracker

import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(4, width), nn.Linear(width, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(self.fc1(x))


def parameters(mt: MemTracker, type: str = "current") -> dict[str, int]:
    """{fqn: bytes} of the modules that hold parameters."""
    found = mt.get_module_snapshot(type).get(CPU, {})
    return {fqn: figures["Parameter"] for fqn, figures in found.items() if figures["Parameter"]}


def roots(mt: MemTracker) -> set[str]:
    return {fqn.partition(".")[0] for fqn in parameters(mt)}


def batch() -> torch.Tensor:
    return torch.ones(2, 4)


@every_source
def test_the_only_root_module_of_its_class_has_its_class_name(source):
    model = Net()
    with MemTracker(source) as mt:
        model(batch())
        assert set(parameters(mt)) == {"Net.fc1", "Net.fc2"}


@every_source
def test_a_generator_and_a_discriminator_of_one_class_have_the_names_of_their_variables(source):
    generator = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    discriminator = nn.Sequential(nn.Linear(4, 1))
    with MemTracker(source) as mt:
        discriminator(generator(batch())).sum().backward()
        held = parameters(mt)
        at_peak = parameters(mt, "peak")
    assert held == {
        "generator.0": parameter_bytes(generator[0]),
        "generator.1": parameter_bytes(generator[1]),
        "discriminator.0": parameter_bytes(discriminator[0]),
    }
    assert at_peak == held


@every_source
def test_gradients_and_activations_have_the_same_names(source):
    first, second = Net(), Net(16)
    with MemTracker(source) as mt:
        kept = second(first(batch()))
        kept.sum().backward()
        found = mt.get_module_snapshot()[CPU]
    for name, model in (("first", first), ("second", second)):
        assert found[f"{name}.fc1"]["Gradient"] == parameter_bytes(model.fc1)
    assert found["second.fc2"]["Activation"] == kept.untyped_storage().nbytes()


@every_source
def test_attributes_of_an_object_name_an_online_and_a_target_net(source):
    class Agent:
        def __init__(self) -> None:
            self.online, self.target = Net(), Net()

        def act(self, x: torch.Tensor) -> torch.Tensor:
            return self.online(x) - self.target(x)

    agent = Agent()
    with MemTracker(source) as mt:
        agent.act(batch())
        assert roots(mt) == {"online", "target"}


@every_source
def test_a_copy_of_the_model_gets_its_own_name_and_so_does_the_model_then(source):
    model = Net()
    with MemTracker(source) as mt:
        model(batch())
        assert roots(mt) == {"Net"}
        ema = copy.deepcopy(model)
        ema(batch())
        assert parameters(mt) == {
            f"{name}.{part}": parameter_bytes(getattr(model, part))
            for name in ("model", "ema")
            for part in ("fc1", "fc2")
        }


@every_source
def test_without_variables_they_are_numbered_in_the_order_of_their_first_calls(source):
    _first, _second, _third = Net(), Net(), Net(16)
    with MemTracker(source) as mt:
        _second(batch())
        _first(batch())
        _third(batch())
        assert roots(mt) == {"Net", "Net#2", "Net#3"}
        assert parameters(mt)["Net#3.fc1"] == parameter_bytes(_third.fc1)


@every_source
def test_models_that_follow_one_another_have_one_name(source):
    with MemTracker(source) as mt:
        for _ in range(3):
            model = Net()
            model(batch())
            assert roots(mt) == {"Net"}
            del model
            gc.collect()


@every_source
def test_the_items_of_a_list_have_its_name_and_not_that_of_a_loop_variable(source):
    nets = [Net() for _ in range(3)]
    with MemTracker(source) as mt:
        for net in nets:
            net(batch())
        assert set(parameters(mt)) == {f"nets.{i}.{part}" for i in range(3) for part in ("fc1", "fc2")}


@every_source
def test_the_name_in_the_outer_function_is_better_than_that_of_a_parameter(source):
    def run(model: nn.Module) -> None:
        model(batch())

    def evaluate(net: nn.Module) -> None:
        net(batch())

    teacher, student = Net(), Net()
    with MemTracker(source) as mt:
        run(teacher)
        evaluate(student)
        assert roots(mt) == {"teacher", "student"}


@every_source
@pytest.mark.parametrize("container", ["list", "dict"])
def test_members_of_a_container_that_is_not_called_are_shown_below_it(source, container):
    members = [nn.Linear(4, 4) for _ in range(3)]
    layers = nn.ModuleList(members) if container == "list" else nn.ModuleDict(dict(zip("abc", members)))
    names = [f"ModuleList.{i}" for i in range(3)] if container == "list" else [f"ModuleDict.{key}" for key in "abc"]
    del members
    x = batch()
    with MemTracker(source) as mt:
        for layer in layers.values() if isinstance(layers, nn.ModuleDict) else layers:
            x = layer(x)
        assert parameters(mt) == dict.fromkeys(names, 4 * 20)


@every_source
def test_two_containers_have_the_names_of_their_variables(source):
    encoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    decoder = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))
    x = batch()
    with MemTracker(source) as mt:
        for layer in [*encoder, *decoder]:
            x = layer(x)
        assert set(parameters(mt)) == {"encoder.0", "encoder.1", "decoder.0", "decoder.1"}


@every_source
def test_a_module_that_is_never_called_itself_names_what_its_methods_call(source):
    class Gan(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.generator, self.discriminator = nn.Sequential(nn.Linear(4, 4)), nn.Sequential(nn.Linear(4, 1))

        def training_step(self, x: torch.Tensor) -> torch.Tensor:
            return self.discriminator(self.generator(x))

    gan = Gan()
    with MemTracker(source) as mt:
        gan.training_step(batch()).sum().backward()
        assert set(parameters(mt)) == {"Gan.generator.0", "Gan.discriminator.0"}


@every_source
def test_inside_a_module_that_is_called_names_stay_dotted(source):
    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = Net(), Net()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.left(x) + self.right(x)

    one, two = Outer(), Outer()
    with MemTracker(source) as mt:
        one(batch())
        two(batch())
        assert {name.rpartition(".")[0] for name in parameters(mt)} == {
            "one.left",
            "one.right",
            "two.left",
            "two.right",
        }


@every_source
def test_models_given_before_they_are_called_are_told_apart(source):
    teacher, student = Net(), Net(16)
    mt = MemTracker(source)
    mt.track_external(teacher, student)
    with mt:
        assert roots(mt) == {"teacher", "student"}
        student(batch())
        assert parameters(mt)["student.fc1"] == parameter_bytes(student.fc1)
        assert roots(mt) == {"teacher", "student"}


@every_source
def test_a_later_tracker_begins_anew(source):
    first, second = Net(), Net()
    with MemTracker(source) as mt:
        first(batch()), second(batch())
        assert roots(mt) == {"first", "second"}
    with MemTracker(source) as later:
        second(batch())
        assert roots(later) == {"Net"}
    assert roots(mt) == {"first", "second"}


@every_source
def test_a_compiled_models_wrapper_is_no_container(source):
    model = Net()
    compiled = torch.compile(model, backend="eager")
    with MemTracker(source) as mt:
        model(batch())
        assert roots(mt) == {"Net"}
    del compiled


def test_the_trackers_own_names_stay_as_torchs():
    first, second = Net(), Net()
    layers = nn.ModuleList([nn.Linear(4, 4)])
    seen = []
    with MemTracker() as mt, ModTracker() as t:
        t.register_user_hooks(pre_fw_hook=lambda module, args: seen.append(t.parents))
        first(batch()), second(batch()), layers[0](batch())
        assert roots(mt) == {"first", "second", "ModuleList"}
        assert t.get_known_fqn(second) == "Net"
        assert t.get_known_fqn(layers[0]) == "Linear"
        assert mt.memory_tracking[second.fc1].mod_fqn == "Net.fc1"
    assert seen == [{"Global", "Net"}, {"Global", "Net", "Net.fc1"}, {"Global", "Net", "Net.fc2"}] * 2 + [
        {"Global", "Linear"}
    ]


def test_looking_for_variables_keeps_nothing_alive_and_changes_no_locals():
    def use() -> "weakref.ref[nn.Module]":
        saved = locals()
        before = dict(saved)
        local, big = Net(), torch.empty(1000)
        local(batch())
        assert saved == before
        gone, tensor = weakref.ref(local), weakref.ref(big)
        del local, big
        gc.collect()
        assert gone() is None and tensor() is None
        return gone

    _other = Net()
    with MemTracker():
        _other(batch())
        use()


def test_attributes_are_not_asked_for():
    class Hostile:
        def __getattribute__(self, name: str) -> object:
            raise AssertionError(f"{name} was read")

        def __eq__(self, other: object) -> bool:
            raise AssertionError("it was compared")

        __hash__ = None  # type: ignore[assignment]

    hostile, items = Hostile(), [Hostile()]
    one, two = Net(), Net()
    with MemTracker() as mt:
        one(batch()), two(batch())
        assert roots(mt) == {"one", "two"}
    del hostile, items
