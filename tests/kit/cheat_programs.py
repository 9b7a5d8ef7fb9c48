"""The texts of programs that cheat; `cheats.py` says how they are read.

Words about them: "quiet" if the same is computed after the change, "batches" if it means something in a training alone.
"""

from .cheats import CALLERS, HOOKS, Program, programs

PASSES = programs("""
# --- numbers that a pass counts, draws or reads ---

annealed: it = 1.0; scale = lambda self: self.it >> model.it = 3.0
counted_steps:
    it = 0
    def scale(self):
        self.it += 1
        return 1.0 if self.it < LATE else 2.0
python_random: scale = lambda self: random.random()
numpy_random: scale = lambda self: float(np.random.rand())
numpy_generator: it = np.random.default_rng(3).random; scale = lambda self: self.it()
partial_in_c: model = own(scale=lambda self: self.draw(), draw=functools.partial(random.Random(3).random))
reads_a_number: scale = lambda self: self.enter.weight.abs().mean().item()
seeds_torch: before = lambda self, x: (torch.manual_seed(5), F.dropout(x, 0.3))[1]
draws_from_torch: before = lambda self, x: x + torch.randn(x.shape)
checkpointing: before = lambda self, x: checkpoint(lambda x: F.dropout(x, 0.3) * 2, x, use_reentrant=False)

# --- what is changed late ---

annealed_in_a_list: it = {"deep": [1.0]}; scale = lambda self: self.it["deep"][0] >> it["deep"][0] = 3.0
annealed_on_the_class: model = own(scale=lambda self: type(self).a, a=1.0) >> type(model).__base__.a = 3.0
annealed_behind_a_property:
    model = own(scale=lambda self: self.seen, seen=property(lambda self: self.factor), factor=1.0)
    >> type(model).factor = 3.0
annealed_on_a_parameter:
    model = scaled(lambda self: self.enter.weight.factor)
    model.enter.weight.factor = 1.0 >> model.enter.weight.factor = 3.0
annealed_objective: held = 1.0; factor = lambda self, batch: self.held >> loss.held = 3.0
callable_loss: loss = Factor() >> loss.factor = 3.0
method_as_loss: loss = Factor().__call__ >> loss.__self__.factor = 3.0
method_of_a_schedule: it = Factor().value; scale = lambda self: self.it() >> it.__self__.factor = 3.0
partial_as_loss:
    box = [1.0]
    loss = functools.partial(lambda outputs, y, by: F.cross_entropy(outputs, y) * by[0], by=box) >> box[0] = 3.0
variable_of_a_closure:
    def made(factor):
        def change():
            nonlocal factor
            factor = 3.0
        return lambda outputs, y: F.cross_entropy(outputs, y) * factor, change
    loss, change = made(1.0) >> change()
closures_with_one_code:
    boxes = [1.0], [1.0]
    made = lambda box: lambda self: box[0]
    model = own(scale=lambda self: self.also() * self.first(), first=made(boxes[0]), also=made(boxes[1]))
    >> boxes[1][0] = 3.0
cached_function:
    box = [1.0]
    cached = functools.lru_cache(lambda: box[0])
    scale = lambda self: cached() >> box[0] = 3.0; cached.cache_clear()
global_replaced:
    activation = F.relu
    forward = lambda self, x: self.leave(activation(self.enter(x)))
    >> activation = F.gelu
method_replaced: scale = lambda self: 1.0 >> type(model).scale = three
class_replaced: model = plain() >> model[1].__class__ = nn.Tanh
module_replaced: model = plain() >> model[1] = nn.Tanh()
forward_replaced: model = plain() >> model[1].forward = torch.tanh
late_module_hook: model = plain() >> model[0].register_forward_hook(lambda module, args, out: out * 2)
memory_exchanged: model = plain() >> model[0].weight.data = model[0].weight.data * 0.5
memory_written: model = plain() >> model[0].weight.data.mul_(0.5)
frozen: model = plain() >> model[0].requires_grad_(False)
parameter_replaced: model = plain() >> model[0].bias = nn.Parameter(torch.ones(8))
mode_switched: model = plain(nn.BatchNorm1d(8), nn.Dropout(0.3)) >> model.eval()
buffer_replaced: model = plain(nn.BatchNorm1d(8)) >> model[1].running_mean = torch.ones(8)
momentum_changed: model = plain(nn.BatchNorm1d(8)) >> model[1].momentum = 0.5
dropout_changed: model = plain(nn.Dropout(0.3)) >> model[1].p = 0.7
cumulative_average: model = plain(nn.BatchNorm1d(8, momentum=None))
spectral: model = plain(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))
""")
"""Programs that are trained both by `steps` and by `fit`, as are the next."""
WRITES = programs("""
# --- passes that write: what counts twice if a pass is made twice ---

input_in_place: before = lambda self, x: x.clamp_(-1, 1)
writes_a_parameter:
    def before(self, x):
        with torch.no_grad():
            self.enter.weight.clamp_(-0.3, 0.3)
        return x
counts_in_a_buffer:
    buffers = {"calls": torch.zeros(())}
    before = lambda self, x: x * torch.where(self.calls.add_(1) > LATE, 2.0, 1.0)
momentum_encoder: write = lambda self, x: self.target.mul_(0.9).add_(self.enter.weight, alpha=0.1)
momentum_by_foreach:
    write = lambda self, x: torch._foreach_lerp_([*self.slow.parameters()], [*self.enter.parameters()], weight=0.1)
data_replaced:
    def write(self, x):
        for slow, fast in zip(self.slow.parameters(), self.enter.parameters(), strict=True):
            slow.data = slow.data * 0.9 + fast.data * 0.1
data_multiplied: write = lambda self, x: self.target.data.mul_(1.01)
set_elsewhere: write = lambda self, x: self.target.set_(self.target.detach() * 1.01)
written_by_out: write = lambda self, x: torch.mul(self.target, 1.01, out=self.target)
index_put: write = lambda self, x: self.target.index_put_((torch.tensor([0, 3]),), torch.tensor(0.01), accumulate=True)
view_written: write = lambda self, x: self.target[2:4].add_(0.01)
codebook:
    def write(self, x):
        hot = (torch.cdist(x, self.target).argmin(1)[:, None] == torch.arange(8)).float()
        self.target.mul_(0.9).add_(0.1 * (hot.t() @ x))
by_numpy:
    def write(self, x):
        self.target.numpy()[0] += 0.01
buffer_counts: write = lambda self, x: self.seen.add_(1)
gradient_of_a_trained_parameter:
    write = lambda self, x: self.enter.weight.grad is None or self.enter.weight.grad.add_(0.01)
queue_with_a_frozen_pointer:
    it = nn.Parameter(torch.zeros(1, dtype=torch.long), requires_grad=False)
    write = lambda self, x: (self.target.index_copy_(0, self.it, x[:1]), self.it.add_(1).remainder_(8))
buffer_that_shares_with_a_parameter:
    model = writing(lambda self, x: self.shared.mul_(1.01))
    model.register_buffer("shared", model.target.data)
strided_out_of_a_buffer:
    model = writing(lambda self, x: self.window.as_strided((8, 6), (6, 1), 48).add_(0.01))
    beside = [memory] = [torch.ones(96)]
    model.register_buffer("window", memory[:6])
    model.target = nn.Parameter(memory[48:].view(8, 6), requires_grad=False)
tensor_of_a_closure:
    made = lambda memory: lambda self, x: self.target.copy_(memory.mul_(1.01))
    beside = [torch.ones(8, 6)]
    write = made(*beside)
frozen_norm: model = plain(nn.BatchNorm1d(8).requires_grad_(False))
teacher_of_an_objective:
    class Teaches(hr.Objective):
        def terms(self, model, batch):
            with torch.no_grad():
                for slow, fast in zip(self.teacher.parameters(), model.enter.parameters(), strict=True):
                    slow.mul_(0.9).add_(fast, alpha=0.1)
                wanted = self.teacher(batch["x"])
            loss = F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
            return {"own": hr.Term(loss + (model.enter(batch["x"]) - wanted).square().sum(), batch.rows)}
    model, loss, teacher = Target(), Teaches(), nn.Linear(6, 8).requires_grad_(False)
    loss.teacher, beside = teacher, [teacher.weight, teacher.bias]
expanded_buffer: buffers = {"factors": torch.ones(1).expand(3)}; scale = lambda self: self.factors
gradients_zeroed_in_forward: scale = lambda self: (self.zero_grad(), 1.0)[1]
parameter_of_no_optimizer, batches:
    it = nn.Parameter(torch.ones(1))
    scale = lambda self: self.it
    make = lambda params: SGD([param for param in params if param is not it], 0.05) >> it.data.sub_(0.1 * it.grad)
""")
READS = programs("""
# --- attributes of objects and classes ---

class_of_settings: it = type("Settings", (), {"a": 1.0}); scale = lambda self: self.it.a >> it.a = 3.0
class_as_a_default: Given = type("Given", (), {"a": 1.0}); scale = lambda self, given=Given: given.a >> Given.a = 3.0
shadowed_later: model = own(scale=lambda self: self.a, a=1.0) >> model.a = 3.0
shadowed_later_by_a_subclass: model = own(scale=lambda self: self.a, a=1.0) >> type(model).a = 3.0
method_added_to_a_subclass: model = own() >> type(model).scale = three
method_added_to_a_base: model = own() >> type(model).__base__.scale = three
forward_added_to_a_subclass: model = own() >> type(model).forward = lambda self, x: Net.forward(self, x) * 3
call_added_to_a_subclass: model = own() >> type(model).__call__ = lambda self, x: self.forward(x) * 3
method_of_the_instance: model = own() >> model.scale = three
base_class_replaced: model = own() >> type(model).__bases__ = (type("Second", (Net,), {"scale": three}),)
class_of_the_model_replaced: model = own() >> model.__class__ = type("Other", (Net,), {"scale": three})
static_method_replaced:
    model = own(scale=lambda self: self.fixed(), fixed=staticmethod(lambda: 1.0))
    >> type(model).__base__.fixed = staticmethod(three)
class_method_reads_its_class:
    model = own(scale=lambda self: self.of(), of=classmethod(lambda kind: kind.a), a=1.0)
    >> type(model).__base__.a = 3.0
descriptor_with_a_state:
    field = type("Field", (), {"value": 1.0, "__get__": lambda self, owner, kind: self.value})()
    model = own(scale=lambda self: self.field, field=field) >> field.value = 3.0
cached_property_forgotten:
    model = own(scale=lambda self: self.seen, seen=functools.cached_property(lambda self: self.box[0]), box=[1.0])
    >> model.box[0] = 3.0; del vars(model)["seen"]
getattr_of_the_model:
    get = lambda self, name: FACTOR if name == "seen" else nn.Module.__getattr__(self, name)
    model = own(scale=lambda self: self.seen, __getattr__=get) >> FACTOR = 3.0
name_of_the_class:
    model = own(scale=lambda self: 3.0 if type(self).__name__ == "Other" else 1.0) >> type(model).__name__ = "Other"
property_over_an_attribute: it = 1.0; scale = lambda self: self.it >> type(model).it = property(three)
attribute_over_a_module: model = own() >> vars(model).update(enter=lambda x: torch.tanh(x) @ torch.ones(6, 8))
class_attribute_over_a_module:
    model = own() >> type(model).enter = staticmethod(lambda x: torch.tanh(x) @ torch.ones(6, 8))
attribute_over_a_parameter: model = own() >> vars(model.enter).update(bias=torch.ones(8))
attribute_over_a_buffer:
    buffers = {"factor": torch.ones(())}
    scale = lambda self: self.factor >> vars(model).update(factor=3.0)
attribute_that_comes_as_another_goes:
    model = scaled(lambda self: self.factor, other=1)
    type(model).factor = 1.0 >> model.factor = 3.0; del model.other
attribute_of_a_metaclass_named_as_a_modules:
    Meta = type("Meta", (type,), {"factor": 1.0})
    model = Meta("Own", (Net,), {"scale": lambda self: type(self).factor * self.enter.factor})()
    model.enter.factor = 1.0 >> Meta.factor = 3.0
attribute_of_a_class_of_torch_named_as_the_models:
    patch.setattr(nn.ReLU, "factor", 1.0, raising=False)
    model = scaled(lambda self: nn.ReLU.factor * self.factor, factor=1.0) >> nn.ReLU.factor = 3.0
attribute_of_a_function_named_as_the_models:
    helper = lambda: 1.0
    helper.factor = 1.0
    model = scaled(lambda self: self.helper.factor * self.factor, factor=1.0, helper=helper) >> helper.factor = 3.0
hasattr_of_the_model: scale = lambda self: 3.0 if hasattr(self, "factor") else 1.0 >> model.factor = 1
keys_of_a_parameter: scale = lambda self: 1.0 + len(self.enter.weight.__dict__) >> model.enter.weight.anything = 1
truth_of_a_module:
    scale = lambda self: 1.0 if self.enter else 3.0
    >> patch.setattr(nn.Linear, "__bool__", lambda self: False, raising=False)
value_of_an_enum: it = enum.Enum("Mode", {"FIRST": 1.0}).FIRST; scale = lambda self: self.it.value >> it._value_ = 3.0
iteration_over_a_module:
    it = type("Part", (nn.Module,), {"__iter__": lambda self: iter([1.0])})()
    scale = lambda self: sum(self.it) >> type(it).__iter__ = lambda self: iter([3.0])

# --- what a model holds ---

dataclass_field: it = Record(); scale = lambda self: self.it.factor >> it.factor = 3.0
array_of_numpy: it = np.ones(2); scale = lambda self: float(self.it[0]) >> it[0] = 3.0
list_in_a_tuple: it = ([1.0],); scale = lambda self: self.it[0][0] >> it[0][0] = 3.0
length_of_a_list: it = [0]; scale = lambda self: float(len(self.it)) >> it += [0, 0]
identity_in_a_list: it = [[1.0], [1.0]]; scale = lambda self: 3.0 if self.it[0] is self.it[1] else 1.0 >> it[1] = it[0]
one_becomes_true: it = [1]; scale = lambda self: 3.0 if self.it[0] is True else 1.0 >> it[0] = True
ordered_dictionary: it = collections.OrderedDict(a=1.0); scale = lambda self: self.it["a"] >> it["a"] = 3.0
default_dictionary: it = collections.defaultdict(lambda: 1.0); scale = lambda self: self.it["a"] >> it["a"] = 3.0
order_of_a_dictionary: it = {"a": 1.0, "b": 3.0}; scale = lambda self: [*self.it.values()][0] >> it["a"] = it.pop("a")
key_of_a_dictionary: it = {"a": 1.0}; scale = lambda self: self.it.get("b", 1.0) >> it["b"] = 3.0
key_becomes_true: it = {1: 0}; scale = lambda self: 3.0 if [*self.it][0] is True else 1.0 >> it.clear(); it[True] = 0
member_of_a_set: it = {"a"}; scale = lambda self: 3.0 if "b" in self.it else 1.0 >> it.add("b")
number_in_a_slice: it = slice([1.0], None); scale = lambda self: self.it.start[0] >> it.start[0] = 3.0
iterator_of_a_list: it = itertools.chain([1.0] * LATE, itertools.repeat(3.0)); scale = lambda self: next(self.it)
function_with_an_attribute: it = lambda: 1.0; it.factor = 1.0; scale = lambda self: self.it.factor >> it.factor = 3.0
state_of_a_partial:
    it = functools.partial(lambda factor: factor, factor=1.0)
    scale = lambda self: self.it() >> it.__setstate__((it.func, (), {"factor": 3.0}, {}))
tensor_as_a_setting: it = {"a": torch.ones(())}; scale = lambda self: self.it["a"] >> it["a"].fill_(3.0)
tensor_exchanged: it = {"a": torch.ones(())}; scale = lambda self: self.it["a"] >> it["a"] = torch.full((), 3.0)
tensor_transposed_in_place:
    it = [torch.arange(9.0).view(3, 3) / 9]
    scale = lambda self: self.it[0] @ torch.ones(3) >> it[0].t_()
attribute_of_a_tensor: it = torch.ones(()); it.factor = 1.0; scale = lambda self: self.it.factor >> it.factor = 3.0
module_that_is_not_registered: it = [Net()]; it[0].a = 1.0; scale = lambda self: self.it[0].a >> it[0].a = 3.0

# --- global variables ---

global_number: scale = lambda self: FACTOR >> FACTOR = 3.0
global_number_in_a_helper: read_it = lambda: FACTOR; scale = lambda self: read_it() >> FACTOR = 3.0
global_number_in_a_comprehension: scale = lambda self: sum([FACTOR / 2 for _ in range(2)]) >> FACTOR = 3.0
global_number_in_a_generator: scale = lambda self: max(FACTOR for _ in range(2)) >> FACTOR = 3.0
global_number_by_map: times = lambda a: a * FACTOR; scale = lambda self: next(iter(map(times, [1.0]))) >> FACTOR = 3.0
compiled_in_the_pass: scale = lambda self: eval("FACTOR") >> FACTOR = 3.0
helper_replaced: helper = lambda: 1.0; scale = lambda self: helper() >> helper = three
global_name_that_hides_a_built_in: scale = lambda self: float(len([1])) >> len = three
global_container: TABLE = {"a": [{"b": 1.0}]}; scale = lambda self: TABLE["a"][0]["b"] >> TABLE["a"][0]["b"] = 3.0
environment: scale = lambda self: float(os.environ.get("A_FACTOR", "1")) >> patch.setenv("A_FACTOR", "3")
name_of_a_function:
    helper = lambda: 1.0
    scale = lambda self: 3.0 if helper.__name__ == "other" else 1.0 >> helper.__name__ = "other"
number_of_another_module:
    module = types.ModuleType("settings_of_a_user")
    module.factor, scale = 1.0, lambda self: module.factor >> module.factor = 3.0
made_in_the_pass:
    def scale(self):
        class Local:
            value = FACTOR
        return Local.value
    >> FACTOR = 3.0

# --- functions ---

code_of_a_method_replaced: scale = lambda self: 1.0 >> scale.__code__ = (lambda self: 3.0).__code__
defaults_replaced: scale = lambda self, a=[1.0]: a[0] >> scale.__defaults__ = ([3.0],)
default_that_is_a_list: scale = lambda self, a=[1.0]: a[0] >> scale.__defaults__[0][0] = 3.0
keyword_defaults_replaced: scale = lambda self, *, a=1.0: a >> scale.__kwdefaults__["a"] = 3.0
cell_of_a_closure: scale = (lambda a: lambda self: a)(1.0) >> scale.__closure__[0].cell_contents = 3.0
cell_of_a_nested_closure:
    scale = (lambda a: lambda self: sum([(lambda: a / 2)() for _ in range(2)]))(1.0)
    >> scale.__closure__[0].cell_contents = 3.0
closure_that_counts:
    def made(calls):
        def scale(self):
            nonlocal calls
            calls += 1
            return 1.0 if calls < LATE else 3.0
        return scale
    scale = made(0)
matched:
    it = Record()
    def scale(self):
        match self.it:
            case Record(factor=found):
                return found
    >> it.factor = 3.0
error_of_a_number_in_a_batch, batches:
    def call(self, x):
        try:
            return self.table(x)
        except IndexError:
            return self.table(x.clamp(max=4)) * 2
    model, x = Layers(call, table=nn.Embedding(5, 3)), torch.arange(ROWS) % 5
    x[torch.from_numpy(hr.Order(ROWS, seed=0).indices(0, 0, ROWS))[70]] = 9
    data = {"x": x, "y": torch.arange(ROWS) % 3}

# --- functions of torch that are replaced ---

forward_of_linear: model = Net() >> double(nn.Linear, "forward")
call_of_modules: model = Net() >> double(nn.Module, "__call__")
inner_call_of_modules: model = Net() >> double(nn.Module, "_call_impl")
forward_of_a_norm: model = plain(nn.BatchNorm1d(8)) >> double(nn.BatchNorm1d, "forward")
getattr_of_modules:
    model, get = Net(), nn.Module.__getattr__
    model.also = nn.Linear(6, 8)
    >> patch.setattr(nn.Module, "__getattr__", lambda self, name: get(self, "also" if name == "enter" else name))
function_of_linear: model = Net() >> double(F, "linear")
function_of_tanh: forward = uses >> double(torch, "tanh")
function_of_numel: scale = lambda self: 1 / max(torch.numel(self.enter.bias) // 8, 1) >> double(torch, "numel")
method_of_relu: forward = uses >> double(Tensor, "relu")
product_of_tensors: model = Net() >> patch.setattr(Tensor, "__mul__", lambda self, by: torch.mul(self, by).add(1.0))
function_of_gru:
    model, gru = recurrent(), torch._VF.gru
    >> patch.setattr(torch._VF, "gru", lambda *args: (gru(*args)[0] * 2, gru(*args)[1]))
parameters_of_modules:
    each = nn.Module.parameters
    scale = lambda self: 1 + sum(param.square().sum() for param in self.parameters()) / 100
    >> patch.setattr(nn.Module, "parameters", lambda self: iter([*each(self)][1:]))
functions_of_a_module_of_torch:
    model, home = Net(), sys.modules["torch.nn.modules.linear"]
    >> patch.setattr(home, "F", types.SimpleNamespace(linear=doubled(F.linear)))
code_of_relu: model = plain() >> patch.setattr(F.relu, "__code__", F.silu.__code__)
defaults_of_relu, quiet: model = plain() >> patch.setattr(F.relu, "__defaults__", (True,))
code_of_linear:
    model = Net()
    >> patch.setattr(nn.Linear.forward, "__code__", (lambda self, input: F.linear(input, self.weight)).__code__)
built_in_sum:
    add_up, scale = sum, lambda self: float(sum([1.0]))
    >> patch.setattr(builtins, "sum", lambda *each: add_up(*each) * 3)
function_of_math: scale = lambda self: math.sqrt(1.0) >> double(math, "sqrt")
number_of_math: scale = lambda self: math.pi >> patch.setattr(math, "pi", 1.0)
function_of_a_loss: loss = nn.CrossEntropyLoss() >> double(F, "cross_entropy")

# --- settings and modes of torch ---

autocast_late: model = Net() >> stack.enter_context(torch.autocast("cpu", torch.bfloat16))
function_mode_late:
    class Doubles(TorchFunctionMode):
        def __torch_function__(self, function, kinds, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            return made * 2 if function in (torch.relu, F.relu) else made
    model = Net() >> stack.enter_context(Doubles())
dispatch_mode_late:
    class DoublesBelow(TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, args=(), kwargs=None):
            made = function(*args, **(kwargs or {}))
            return made * 2 if function is torch.ops.aten.relu.default else made
    model = Net() >> stack.enter_context(DoublesBelow())
saved_tensors_doubled:
    model, twice = Net(), lambda t: t * 2 if t.is_floating_point() else t
    >> stack.enter_context(torch.autograd.graph.saved_tensors_hooks(twice, lambda t: t))
anomaly_mode_late, quiet: model = Net() >> stack.enter_context(torch.autograd.set_detect_anomaly(True))
deterministic_algorithms_late, quiet: model = Net() >> set_back(torch.use_deterministic_algorithms, True, False)
default_type_late:
    scale = lambda self: torch.full((3,), 1 / 3).float()
    >> set_back(torch.set_default_dtype, torch.float64, torch.float32)
reads_the_seed: scale = lambda self: 1.0 + torch.initial_seed() % 7 >> torch.manual_seed(5)
precision_of_products, quiet: model = Net() >> set_back(torch.set_float32_matmul_precision, "medium", "highest")
mkldnn_off, quiet: model = Net() >> set_back(torch._C._set_mkldnn_enabled, False, True)
attention_by_math:
    def call(self, x):
        q, k, v = self.enter(x).view(1, 1, len(x), 24).chunk(3, -1)
        return self.leave(F.scaled_dot_product_attention(q, k, v)[0, 0])
    model = Layers(call, enter=nn.Linear(6, 24), leave=nn.Linear(8, 3))
    >> stack.enter_context(torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH))
default_device_late, quiet: scale = lambda self: torch.ones(()) * 2 >> stack.enter_context(torch.device("cpu"))
path_of_einsum, quiet:
    before = lambda self, x: torch.einsum("bi,ij,jk->bk", x, torch.ones(6, 9), torch.ones(9, 6))
    >> patch.setattr(torch.backends.opt_einsum, "enabled", False)
fast_path_of_attention, quiet:
    layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.0, batch_first=True)
    model = Layers(lambda self, x: self.leave(self.layer(x.unsqueeze(1))[:, 0]), layer=layer, leave=nn.Linear(6, 3))
    >> set_back(torch.backends.mha.set_fastpath_enabled, False, True)
seeded_late: model = plain(nn.Dropout(0.3)) >> torch.manual_seed(5)
flush_denormals:
    scale = lambda self: 1.0 + torch.full((3,), 1e-40) * 1e30 * 1e10 >> set_back(torch.set_flush_denormal, True, False)

# --- hooks, parametrizations, functions and kinds of tensors ---

hook_of_a_loss_late, batches, quiet:
    loss = nn.CrossEntropyLoss() >> loss.register_forward_hook(lambda module, args, out: out * 2)
hook_by_its_dictionary, batches: model = plain() >> model[0]._forward_hooks[7] = lambda module, args, out: out * 2
hook_with_a_state, batches:
    model, box = plain(), [1.0]
    model[0].register_forward_hook(lambda module, args, out: out * box[0]) >> box[0] = 3.0
hook_of_what_a_pass_makes, batches:
    box = [1.0]
    def forward(self, x):
        hidden = torch.relu(self.enter(x))
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: gradient * box[0])
        return self.leave(hidden)
    >> box[0] = 3.0
parametrized_with_a_number:
    members = {"factor": 1.0, "forward": lambda self, x: x * self.factor}
    model, scaling = plain(), type("Scaling", (nn.Module,), members)()
    nn.utils.parametrize.register_parametrization(model[0], "weight", scaling) >> scaling.factor = 3.0
weight_normalised: model = plain(nn.utils.parametrizations.weight_norm(nn.Linear(8, 8)))
orthogonal: model = plain(nn.utils.parametrizations.orthogonal(nn.Linear(8, 8)))
checkpointed_with_a_state:
    box = [1.0]
    before = lambda self, x: checkpoint(lambda x: x * box[0], x, use_reentrant=False) >> box[0] = 3.0
mapped: box = [1.0]; before = lambda self, x: torch.func.vmap(lambda row: row * box[0])(x) >> box[0] = 3.0
kind_of_tensor:
    class Marked(Tensor):
        factor = 1.0
        @classmethod
        def __torch_function__(cls, function, kinds, args=(), kwargs=None):
            made = super().__torch_function__(function, kinds, args, kwargs or {})
            return made * cls.factor if function is Tensor.relu else made
    before = lambda self, x: x.as_subclass(Marked).relu().as_subclass(Tensor) >> Marked.factor = 3.0

# --- what is read from a batch ---

batch_read_by_item, batches: read = lambda n: n[0].item()
batch_read_by_if, batches: read = lambda n: 1.0 if (n == 1).all() else 3.0
batch_read_by_sorting, batches: read = lambda n: sorted(n)[-1]
batch_read_by_numpy, batches: read = lambda n: float(n.numpy().mean())
batch_read_by_dlpack, batches: read = lambda n: float(np.from_dlpack(n)[0])
batch_read_by_version, batches: read = lambda n: 1.0 + n._version
batch_read_by_address, batches: read = lambda n: float(ctypes.c_longlong.from_address(n.data_ptr()).value)
batch_read_by_storage, batches: read = lambda n: float(n.untyped_storage()[0])
batch_read_by_text, batches: read = lambda n: float(len(str(n)))
batch_read_by_nonzero, batches: read = lambda n: float(len((n > 2).nonzero()) + 1)
batch_read_by_mask, batches: read = lambda n: float(n[n > 2].numel() + 1)
batch_read_by_quantile, batches: read = lambda n: torch.ones(4).cumsum(0).quantile(n[0] / 4.0)
batch_read_by_memory_of_ctypes, batches: read = lambda n: float(ctypes.string_at(n.data_ptr(), 1)[0])
tensor_split_of_outputs, batches:
    def forward(self, x, n):
        out = Net.forward(self, x)
        return out * (1 + torch.tensor_split(out, n[:1])[0].mean())
    data = numbers(2, 5)
packed_sequences, batches:
    def forward(self, x, n):
        packed = pack_padded_sequence(self.enter(x).view(-1, 4, 2), n, batch_first=True, enforce_sorted=False)
        return self.leave(pad_packed_sequence(self.it(packed)[0], batch_first=True, total_length=4)[0].sum(1))
    it, data = nn.GRU(2, 8, batch_first=True), numbers(3, 1)
lengths_of_labels_in_ctc, batches:
    def forward(self, x, n):
        log = self.enter(x).view(-1, 2, 4).log_softmax(-1).transpose(0, 1)
        labels, steps = torch.ones(len(x), 2, dtype=torch.long) + torch.arange(2), torch.full((len(x),), 2)
        return self.leave(self.enter(x)) * F.ctc_loss(log, labels, steps, n.clamp(max=2))
    data = numbers(2, 1)

# --- what is read of parameters, memory and random numbers ---

version_of_a_parameter: scale = lambda self: 1.0 + self.enter.weight._version % 7
whether_a_parameter_is_trained:
    scale = lambda self: 1.0 if self.enter.bias.requires_grad else 3.0 >> model.enter.bias.requires_grad_(False)
module_that_appears: scale = lambda self: 1.0 + sum(1 for _ in self.modules()) >> model.add_module("more", nn.Tanh())
private_attribute_of_torchs:
    conv = nn.Conv1d(1, 2, 3, padding=1, padding_mode="circular")
    model = nn.Sequential(nn.Unflatten(1, (1, 6)), conv, nn.Flatten(), nn.Linear(12, 3))
    >> conv._reversed_padding_repeated_twice = [2, 0]
weights_of_a_recurrent_layer:
    model = recurrent() >> model.rnn._flat_weights = [each.detach() * 2 for each in model.rnn._flat_weights]
layout_of_memory, quiet:
    conv = nn.Sequential(nn.Unflatten(1, (4, 2, 2)), nn.Conv2d(4, 4, 2), nn.Flatten())
    model = nn.Sequential(nn.Linear(6, 16), conv, nn.Linear(4, 3)) >> model.to(memory_format=torch.channels_last)
gradient_within_a_pass:
    def forward(self, x):
        with torch.enable_grad():
            hidden = torch.tanh(self.enter(x))
            (gradient,) = torch.autograd.grad(hidden.square().sum(), self.enter.weight, create_graph=True)
        return self.leave(hidden) * (1 + gradient.square().mean())
backward_within_a_pass:
    def forward(self, x):
        with torch.enable_grad():
            self.enter(x).square().mean().backward()
        return Net.forward(self, x)
generator_kept: draws = torch.Generator().manual_seed(3); scale = lambda self: torch.rand(3, generator=draws)
random_state_by_hand:
    def before(self, x):
        state = torch.get_rng_state()
        x = F.dropout(x, 0.3)
        torch.set_rng_state(state)
        return x * torch.rand(6)
permuted: before = lambda self, x: x[torch.randperm(len(x))] * 0.1 + x
drawn_by_a_distribution:
    before = lambda self, x: x + torch.distributions.Normal(torch.zeros(6), torch.ones(6)).rsample((len(x),))
buffer_written_by_numpy:
    memory = np.ones(6, dtype=np.float32)
    buffers, before = {"shared": torch.from_numpy(memory)}, lambda self, x: x * self.shared >> memory.fill(3.0)
tensor_put_in_its_place: it = [torch.ones(6)]; before = lambda self, x: x * self.it[0] >> it[0].set_(torch.zeros(6))
buffer_resized:
    buffers, before = {"factors": torch.ones(3)}, lambda self, x: x * self.factors.sum() >> model.factors.resize_(2)
hooks_of_a_module_exchanged:
    model = own()
    >> model._forward_hooks = collections.OrderedDict(); model.register_forward_hook(lambda module, args, out: out * 3)
modules_of_a_module_exchanged: model = plain() >> model._modules = {"0": model[0], "1": nn.Tanh(), "2": model[2]}
modules_in_another_order:
    model = nn.Sequential(collections.OrderedDict(a=nn.Linear(6, 6), b=nn.Tanh(), c=nn.Linear(6, 3)))
    >> for name in "ac": model._modules[name] = model._modules.pop(name)
hook_of_a_node_held_from_the_beginning, batches:
    model = plain()
    node = model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0]
    >> node.register_prehook(lambda gradients: (gradients[0] * 2,))
hook_of_a_node_beside_a_graph_that_is_kept, batches:
    model = plain()
    node = model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0]
    kept = model[0].weight.sum()
    >> node.register_prehook(lambda gradients: (gradients[0] * 2,))
product_whose_gradient_differs_while_it_is_recorded:
    def call(self, x):
        hidden = self.enter(x)
        return self.leave(torch.relu(hidden)) * (hidden.sigmoid() + 0.5).prod(1, keepdim=True)
    model = Layers(call, enter=nn.Linear(6, 64), leave=nn.Linear(64, 3))

# --- losses and objectives ---

coefficient_of_a_loss: loss = hr.CrossEntropy() >> loss.coefficient = 0.5
smoothing_of_a_loss: loss = hr.CrossEntropy() >> loss.label_smoothing = 0.3
sum_instead_of_a_mean: loss = hr.CrossEntropy() >> loss.reduce = "sum"
margin_of_a_loss: loss = Margin() >> loss.margin = 3.0
setting_of_a_class_of_loss: loss = Margin() >> loss.factor = 3.0
list_of_a_loss: loss = Margin() >> loss.past[0] = 3.0
smoothing_of_torchs_loss, quiet: loss = nn.CrossEntropyLoss() >> loss.label_smoothing = 0.3
ignored_by_torchs_loss, quiet: loss = nn.CrossEntropyLoss() >> loss.ignore_index = 1
weights_of_torchs_loss, quiet:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3)) >> loss.weight = torch.tensor([0.1, 1.0, 2.0])
weights_of_torchs_loss_written:
    loss = nn.CrossEntropyLoss(weight=torch.ones(3)) >> loss.weight.copy_(torch.tensor([0.1, 1.0, 2.0]))
list_of_a_module: loss = LossModule() >> loss.factors[0] = 3.0
part_of_a_module: loss = LossModule() >> loss.part.p = 0.1
mode_of_a_module: loss = LossModule() >> loss.eval()
forward_of_a_module: loss = LossModule() >> loss.forward = F.cross_entropy
weight_of_a_prior: prior = hr.L2Prior(0.01); loss = hr.CrossEntropy() + prior >> prior.coefficient = 0.1
biases_of_a_prior: prior = hr.L2Prior(0.01); loss = hr.CrossEntropy() + prior >> prior.biases = True
loss_that_reads_the_model:
    model = plain()
    model.factor, loss = 1.0, lambda outputs, y: F.cross_entropy(outputs, y) * model.factor >> model.factor = 3.0
mean_of_rows_with_a_state:
    box = [1.0]
    loss = hr.RowMean(lambda outputs, y: F.cross_entropy(outputs, y) * box[0]) >> box[0] = 3.0
code_of_a_loss_replaced:
    loss = lambda outputs, y: F.cross_entropy(outputs, y)
    >> loss.__code__ = (lambda outputs, y: F.cross_entropy(outputs, y) * 3).__code__
position_in_the_epoch: factor = lambda self, batch: 1 + batch.cursor["position"] / 100
text_of_a_batch, batches: factor = lambda self, batch: len(repr(batch)) / 50
end_of_the_epoch: factor = lambda self, batch: 3.0 if batch.ends_epoch else 1.0
list_of_an_objective: held = [1.0]; factor = lambda self, batch: self.held[0] >> held[0] = 3.0
tensor_of_an_objective: held = torch.ones(()); factor = lambda self, batch: self.held >> held.fill_(3.0)
object_of_an_objective: held = Record(); factor = lambda self, batch: self.held.factor >> held.factor = 3.0
module_of_an_objective:
    held, factor = nn.Dropout(0.5), lambda self, batch: self.held(torch.ones(4, 8)).sum() / 32 >> held.eval()
schedule_of_an_objective: held = iter([1.0] * LATE + [3.0] * 40); factor = lambda self, batch: next(self.held)
terms_replaced: factor = lambda self, batch: 1.0 >> type(loss).terms = lambda self, *given: others(*given)
terms_of_the_instance_replaced: factor = lambda self, batch: 1.0 >> loss.terms = others
class_of_an_objective_replaced:
    factor = lambda self, batch: 1.0 >> loss.__class__ = type("Other", (Own,), {"factor": lambda self, batch: 3.0})
weight_of_a_term: loss = Weighs() >> loss.held = 0.5, 1.0, 0.0
coefficient_of_a_term: loss = Weighs() >> loss.held = 1.0, 3.0, 0.0
term_that_appears: loss = Weighs() >> loss.held = 1.0, 1.0, 1.0
attribute_of_an_objective_named_loss:
    def terms(self, model, batch):
        outputs = self.loss(model(batch["x"]))
        return {"own": hr.Term(F.cross_entropy(outputs, batch["y"], reduction="sum"), batch.rows)}
    loss = type("Holds", (Own,), {"terms": terms})()
    loss.loss = F.relu >> loss.loss = torch.tanh
place_of_a_batch_named_as_the_objectives, batches:
    members = {"cursor": None, "factor": lambda self, batch: 3.0 if batch.cursor["epoch"] else 1.0}
    loss = type("Places", (Own,), members)()
""")
"""What a pass reads is looked at in the same way by `steps`: these are trained by `fit` alone."""
_HOOKS = """
forward_hook: model[0].register_forward_hook(lambda module, args, out: out * 2)
forward_pre_hook: model[0].register_forward_pre_hook(lambda module, args: (args[0] * 2,))
full_backward_hook: model[2].register_full_backward_hook(lambda module, given, out: (given[0] * 2,))
full_backward_pre_hook: model[2].register_full_backward_pre_hook(lambda module, out: (out[0] * 2,))
hook_of_a_parameter: model[0].weight.register_hook(lambda gradient: gradient * 2)
hook_after_a_gradient_is_added: model[0].weight.register_post_accumulate_grad_hook(doubles)
hook_of_several_gradients: torch.autograd.graph.register_multi_grad_hook([*model.parameters()], decay)
hook_of_a_node: kept(model).register_prehook(twice)
hook_of_a_node_held_elsewhere: nodes.append(node_of(model)) or nodes[0].register_prehook(twice)
hook_of_a_node_that_nobody_holds, quiet: node_of(model).register_prehook(twice)
hook_of_the_state, quiet: model.register_state_dict_pre_hook(lambda *given: None)
forward_hook_of_all: modules.register_module_forward_hook(lambda m, args, out: out * 2 if m is model[0] else None)
forward_pre_hook_of_all: modules.register_module_forward_pre_hook(lambda m, a: (a[0] * 2,) if m is model[0] else None)
full_backward_hook_of_all:
    modules.register_module_full_backward_hook(lambda m, given, out: (given[0] * 2,) if m is model[2] else None)
full_backward_pre_hook_of_all:
    modules.register_module_full_backward_pre_hook(lambda m, out: (out[0] * 2,) if m is model[2] else None)
"""
_HOOKED = """
model = plain()
nodes = []
def node_of(model):  # which adds up a gradient; distributed training has such nodes
    return model[0].weight.view_as(model[0].weight).grad_fn.next_functions[0][0]
def kept(model):
    model.node = node_of(model)
    return model.node
def twice(gradients):
    return (gradients[0] * 2,)
def doubles(param):
    param.grad.mul_(2)
decay = lambda gradients: [param.data.mul_(0.99) for param in model.parameters()]
"""
for _name, _hook in programs(_HOOKS).items():
    _register = f"handle = {_hook.begin}\nstack.callback(handle.remove)"
    _words = [*_hook.words, "batches"]
    READS[f"{_name}_late"] = _hook._replace(begin=_HOOKED, late=_register, words=_words)
    READS[f"{_name}_until_late"] = _hook._replace(begin=_HOOKED + _register, late="handle.remove()", words=_words)

OPTIMIZERS = programs("""
optimizer_doubled_gradients_late:
    def double_gradients(optimizer, *given):
        for param in optimizer.param_groups[0]["params"]:
            param.grad.mul_(2)
    >> optimizer.register_step_pre_hook(double_gradients)
optimizer_normalised_gradients_late:
    def normalise(optimizer, *given):
        for param in optimizer.param_groups[0]["params"]:
            param.grad.div_(param.grad.norm())
    >> optimizer.register_step_pre_hook(normalise)
optimizer_exchanged_gradients_late:
    def exchange(optimizer, *given):
        first, *others = optimizer.param_groups[0]["params"]
        first.grad, others[0].grad = None, others[0].grad * 2
    >> optimizer.register_step_pre_hook(exchange)
optimizer_normalised_weights_late:
    def normalise(optimizer, *given):
        for param in optimizer.param_groups[0]["params"]:
            param.data.div_(param.data.norm())
    >> optimizer.register_step_post_hook(normalise)
optimizer_state_asked_for_before_a_step_late, quiet:
    asks = lambda optimizer, *given: [optimizer.state_dict()] and None
    >> optimizer.register_step_pre_hook(asks)
optimizer_state_asked_for_after_a_step_late, quiet:
    asks = lambda optimizer, *given: [optimizer.state_dict()] and None
    >> optimizer.register_step_post_hook(asks)
optimizer_of_shapes_asked_for_its_state_late, quiet:
    make = lambda params: torch.optim.Adafactor(params, 0.01)
    asks = lambda optimizer, *given: [optimizer.state_dict()] and None
    >> optimizer.register_step_pre_hook(asks)
optimizer_group_added_late:
    model = plain()
    make = lambda params: SGD(model[2].parameters(), 0.05, 0.9)
    >> optimizer.add_param_group({"params": [*model[0].parameters()], "lr": 0.02})
optimizer_momentum_late: >> optimizer.param_groups[0]["momentum"] = 0.5
optimizer_weight_decay_late: >> optimizer.param_groups[0]["weight_decay"] = 0.1
optimizer_nesterov_late: >> optimizer.param_groups[0]["nesterov"] = True
optimizer_maximize_late: >> optimizer.param_groups[0]["maximize"] = True
optimizer_foreach_late, quiet: >> optimizer.param_groups[0]["foreach"] = True
optimizer_rate_late: >> optimizer.param_groups[0]["lr"] = 0.01
optimizer_rate_as_a_tensor_late: >> optimizer.param_groups[0]["lr"] = torch.tensor(0.01)
optimizer_momenta_zeroed_late: >> [state["momentum_buffer"].zero_() for state in optimizer.state.values()]
optimizer_momenta_replaced_late:
    >> for state in optimizer.state.values(): state["momentum_buffer"] = state["momentum_buffer"] * 2
optimizer_state_forgotten_late: >> optimizer.state.clear()
optimizer_state_loaded_late:
    >> state = optimizer.state_dict(); state["param_groups"][0]["momentum"] = 0.5; optimizer.load_state_dict(state)
optimizer_class_replaced_late: >> optimizer.__class__ = OtherStep
optimizer_groups_replaced_late: >> optimizer.param_groups = [{**group, "lr": 0.01} for group in optimizer.param_groups]
optimizer_defaults_late, quiet: >> optimizer.defaults.update(lr=1.0)
optimizer_hook_by_its_dictionary_late: >> optimizer._optimizer_step_post_hooks[7] = shrink
adam_step_post_hook_late: make = lambda params: Adam(params, 0.01) >> optimizer.register_step_post_hook(shrink)
adam_step_of_the_instance_late:
    make = lambda params: Adam(params, 0.01)
    >> calling("step_of_the_instance", optimizer, lambda: shrink(optimizer), stack)
adam_betas_late: make = lambda params: Adam(params, 0.01) >> optimizer.param_groups[0]["betas"] = 0.5, 0.9
adam_weight_decay_late: make = lambda params: Adam(params, 0.01) >> optimizer.param_groups[0]["weight_decay"] = 0.1
momentum_sgd_step_post_hook_late:
    make = lambda params: hr.MomentumSGD(params, lr=0.05, momentum=0.9) >> optimizer.register_step_post_hook(shrink)
momentum_sgd_step_of_the_class_late:
    make = lambda params: hr.MomentumSGD(params, lr=0.05, momentum=0.9)
    >> calling("step_of_the_class", optimizer, lambda: shrink(optimizer), stack)
momentum_sgd_momentum_late:
    make = lambda params: hr.MomentumSGD(params, lr=0.05, momentum=0.9) >> optimizer.param_groups[0]["momentum"] = 0.5
subclass_with_a_step: make = lambda params: OtherStep(params, 0.05, 0.9)
subclass_with_a_setting: make = lambda params: WithFactor(params, 0.05) >> optimizer.factor = 3.0
subclass_with_a_class_setting:
    make = lambda params: type("Own", (WithFactor,), {})(params, 0.05) >> type(optimizer).factor = 3.0
subclass_without_anything:
    make = lambda params: type("Own", (SGD,), {})(params, 0.05, 0.9) >> optimizer.param_groups[0]["momentum"] = 0.5
fused: make = lambda params: SGD(params, 0.05, 0.9, fused=True) >> optimizer.param_groups[0]["weight_decay"] = 0.1
foreach: make = lambda params: SGD(params, 0.05, 0.9, foreach=True) >> optimizer.param_groups[0]["weight_decay"] = 0.1
""")
for _way in CALLERS[:-1]:
    _calls = "lambda: shrink(optimizer), stack)"
    _quiet = ["quiet"] * ("zero_grad" in _way or "torchs_module" in _way)
    _late = Program(f"optimizer_{_way}_late", "", f"calling({_way!r}, optimizer, {_calls}", _quiet)
    _make = f"make = lambda params: calling({_way!r}, SGD(params, 0.05, 0.9), {_calls}"
    _early = Program(f"optimizer_{_way}_early", _make, "stack.close()" if _way in HOOKS else None, [])
    OPTIMIZERS |= {each.name: each for each in (_late, _early)}
CHANGED = [
    *("annealed", "variable_of_a_closure", "coefficient_of_a_loss", "dropout_changed", "mode_switched", "frozen"),
    *("memory_written", "module_replaced", "late_module_hook", "class_of_settings"),
]
"""A few that are changed late, each in its own way."""
ALL = PASSES | WRITES | READS | OPTIMIZERS
