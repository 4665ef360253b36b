"""Bad inputs of every kind, with their error messages."""

import json
from typing import NamedTuple

FIT = (
    "fit --method fedavg --data federations.FewDigits --data.num_clients 3 --data.partition iid --rounds 1 --devices 1 "
    "--threads 1 --accelerator cpu --wandb off"
)
TABLE = "table --paper toy.yaml --scale quick --jobs 1 --accelerator cpu --wandb off"


class Case(NamedTuple):
    """One bad input.

    Args:
        area: what it is an input to.
        given: what is given, for people.
        says: part of the message.
        command: the command line.
        files: files in the current folder, by name.
        starts: whether the run has begun when the error comes: it leaves a failed record, and otherwise nothing.
    """

    area: str
    given: str
    says: str
    command: str
    files: dict[str, str]
    starts: bool = False


# --- command line

COMMANDS = {
    "fitt": "invalid choice: 'fitt' (choose from",
    "fit": "--method is missing; it is one of cbafed, ",
    "fit --suite toy.yaml": "--suite and --row go together",
    "fit --suite toy.yaml --row 9/A/low --scale quick": "unknown row '9/A/low'; did you mean '1/A/low'?",
    "fit --suite toy.yaml --row 1/A/low --config a.yaml": "both say where to start; give one of them",
    "fit --config missing.yaml": "--config missing.yaml: No such file or directory",
    "table --paper rscfet": "unknown paper 'rscfet'; did you mean 'rscfed'?",
    "table --paper toy.yaml --scale papr": "unknown scale 'papr'. Known: quick",
    "table --paper toy.yaml --seeds a,b": "--seeds a,b: write numbers separated by commas",
    "table --paper toy.yaml --jobs 0": "--jobs is 0; it must be at least 1",
    "table --paper toy.yaml --methods mine": "unknown method of this suite 'mine'",
    "table --paper toy.yaml --only 9/*": "no row matches 9/*",
    "table --paper toy.yaml --readme REDME.md": "--readme REDME.md: there is no such file",
    "table --paper toy.yaml --method.lr 1": "table takes no --method.lr: what a table runs is in its suite file",
    "plot nowhere": "there is no run at nowhere",
    "verify runs/none runs/other": "there is no run at runs/none: it has no record.json",
    "tune --paper rscfed": "scale quick has no entry `tuning`, so there is nothing to tune",
    "admit --paper rscfed": "has no entry `admission`, so there is nothing to admit",
    "list foo": "error: what foo: expected {methods,data,models,suites}",
}
OPTIONS = {
    "--method fedavgg": "unknown method 'fedavgg'; did you mean 'fedavg'?",
    "--method os.path.join": "method 'os.path.join' is not a subclass of methods.base.FedMethod",
    "--data digit": "unknown data set 'digit'; did you mean 'digits'?",
    "--data methods.fedavg.FedAvg": "is not a subclass of datamodules.base.FSSLDataModule",
    "--model os.system": "names from the standard library are refused as models",
    "--model resnet99": "unknown model 'resnet99'",
    "--model torch.nn.ReLU": "it has no argument num_classes",
    "--model torch.pi": "this is a float; name a subclass of torch.nn.Module",
    "--model_args.depth 3": "unknown option depth",
    "--model_args.width .inf": "--model_args.width is inf; give a finite number",
    "--lr 0.1": "did you mean --method.lr?",
    "--method.lrr 0.1": "unknown method argument 'lrr'; did you mean 'lr'?",
    "--method.lr fast": "--method.lr fast: expected float",
    "--method.lr -0.1": "lr=-0.1 is out of range: from 0",
    "--method fixmatch --method.threshold 7.5": "threshold=7.5 is out of range: a probability, 0 to 1",
    "--method cbafed --method.agg_counts all": "--method.agg_counts all: expected {selected,size}",
    "--rounds 1.5": "--rounds 1.5: expected int",
    "--rounds 0": "rounds is 0; it must be at least 1",
    "--seed -1": "seed is -1; it must be 0 to 2^32 - 1",
    "--seed ,": "--seed ,: write numbers separated by commas, e.g. 1,2,3",
    "--precision 16-true": "weights, momentum and aggregates would lose small updates",
    "--report averaged": "report is averaged, but nothing is averaged: give average_last, a number of rounds",
    "--report first": "unknown report 'first'",
    "--nonfinite ignore": "--nonfinite ignore: expected {stop,skip}",
    "--devices 9999": "--devices 9999: so many processes take 4,000 GB of memory before they have any data",
    "--threads 999999999999999": "threads is 999999999999999; it must be at most 1024",
    "--num_nodes 2": "nothing has started this process on each of them",
    "--checkpoint_every_s .nan": "checkpoint_every_s is nan; give a finite number",
    "--accelerator gpux": "error: unknown accelerator 'gpux'; did you mean 'gpu'? Known: cpu, cuda, ",
    "--accelerator tpu": "--accelerator tpu: this machine has none that PyTorch can use",
    "--logger comet": "error: unknown logger 'comet'",
    "--callbacks nowhere.Mine": "--callbacks nowhere.Mine cannot be imported: No module named 'nowhere'",
    "--callbacks collections.OrderedDict": "this is not a subclass of lightning.pytorch.Callback",
    "--roster.participants 99": "99 participants per round from 3 clients; choose 1..3 or null for all",
    "--roster.participant 3": "unknown roster argument 'participant'; did you mean 'participants'?",
    "--roster.rule first": "unknown rule 'first'; choose one of uniform, numpy_round, numpy_run",
}

# --- configuration files, given with --config

CONFIGS = {
    "method: [a": "config.yaml: not valid YAML",
    "method: {class_path: fedavg, init_args: {lr: 1, lr: 2}}": "the key 'lr' occurs twice",
    "model_args: &a {b: *a}": "config.yaml: not valid YAML: a value contains itself",
    "method: {class_path: fedavg, init_args: [1]}": "method.init_args is [1]; give a mapping of names to values",
    "method: {class_path: fedavg, args: {}}": "method: give a name or class_path and init_args",
    "method: {class_path: fedavg, init_args: {1: 2}}": "method.init_args: 1 is no name of an option",
    "method: 5": "method: 5 is no name of a class",
    "data: {class_path: digits, init_args: {data_dir: x}}": "unknown data argument 'data_dir': give --data_dir instead",
    "model: ''": "model is empty; give the name of a network",
    "rounds: true": "--rounds True: expected int",
    "round: 3": "unknown configuration argument 'round'; did you mean 'rounds'?",
    "roster: [1]": "roster is [1]; give a mapping of names to values",
    'runtime: {results_dir: "a\\nb"}': "--results_dir 'a\\nb': a control character, such as a line break",
    "runtime: {data_dir: ~/data}": "--data_dir=~/data: the shell has not replaced ~",
    "runtime: {device: 2}": "unknown runtime argument 'device'; did you mean 'devices'?",
}

# --- data: options, and classes of one's own

DATA = {
    "--data.zoom 8": "a window of 32 does not fit into 8",
    "--data.border 1000": "makes training images of 2032 x 2032 pixels, 1.1 GB of memory in all, but the network takes",
    "--data.side 200000 --data.zoom 200000": "the images of FewDigits would take 40,800 GB of memory, and ",
    "--data.pipeline none": "unknown pipeline 'none'",
    "--data.validation 5000": "data.validation=5000: give a number below the 250 training images",
    "--data ag_news --data_dir empty": "ag_news is not in ",
    "--data cifar10 --data_dir damaged": "cifar10.npz (file 1 of 1) is damaged or not the published data set",
    "--data cifar10 --data_dir pickled": "Object arrays cannot be loaded when allow_pickle=False",
    "--data bad_data.Returns": "Returns.read returned a NoneType; return datamodules.io.sources.Arrays",
    "--data bad_data.Raises": "Raises.read: KeyError: 'no such column'",
    "--data bad_data.Beyond": "Beyond.read: a training label is 9, but num_classes is 5",
    "--data bad_data.Features": "Features.read: train features must be finite",
    "--data bad_data.NoClasses": "NoClasses must set the class attribute num_classes",
}
PARTITIONS = {
    "--data.num_clients 0": "cannot spread 250 samples over 0 clients: choose at least one client",
    "--data.partition dirichlet --data.beta 0": "the Dirichlet concentration beta must be positive and finite, got 0.0",
    "--data.partition dirichlet --data.min_size 200": "cannot give each of 3 clients min_size=200 or more",
    "--data.labelled_clients 4": "labelled_clients must be 1 to 3 (all clients), got 4",
    "--data.picked 9": "cannot choose 9 labelled clients out of 3",
    "--data.labelled_histogram [1,2]": "data.labelled_histogram [1, 2] has 2 numbers for 10 classes: give one for each",
    "--data.scenario server": "which needs num_labels",
    "--data.scenario server --data.num_labels 7": "num_labels=7 is not a multiple of 10 classes: choose 10 or 20",
    "--data.scenario all_clients": "labels at all clients need one of data.num_labels",
    "--data.scenario all_clients --data.label_fraction 1.5": "labelled fraction of a client must be in (0, 1], got 1.5",
    "--data.labelled_repeats second_class": "data.labelled_repeats=second_class needs data.labels_per_class",
    "--data.union_mode code_index": "this partition has no labelled pool in a stored order",
    "--data.labelled_min_per_class 900": "the labelled clients (1) must together hold that many images of every class",
    "--data.balanced_holdout 55": "data.balanced_holdout=55: give a multiple of the 10 classes",
    "--data.balanced_holdout 10 --data.labelled_holdout 0.5": "both replace the test set: give only one",
    "--data.partition_file torn.json": "cannot use the partition file torn.json: JSONDecodeError",
    "--data.partition_file two.json": "two.json has 2 clients; give --data.num_clients 2",
    "--data.partition_file twice.json": "the partition assigns sample 1 twice",
}

# --- methods of one's own: before the run begins, and in its first round

PLUGINS = {
    "bad_syntax.Mine": "method 'bad_syntax.Mine' cannot be imported: invalid syntax (",
    "bad_import.Mine": "cannot be imported: No module named 'no_such_package' (",
    "bad_raise.Mine": "cannot be imported: ZeroDivisionError: division by zero (",
    "bad_exit.Mine": "cannot be imported: SystemExit: 0 (",
    "bad_methods.Mini": "module 'bad_methods' has no attribute 'Mini'; did you mean 'Mine'?",
    "bad_methods.Plain": "method 'bad_methods.Plain' is not a subclass of methods.base.FedMethod",
    "bad_methods.Constructor": "the method Constructor cannot be made: KeyError: 'width' (",
    "bad_methods.Required": "method argument 'mu' of Required has no default: give --method.mu",
    "bad_methods.NoSuper": "NoSuper.__init__ must call super().__init__(model, **base)",
    "bad_methods.NotNamed": "argument 'net' of NotNamed has no default: give --method.net; if it is the network, call "
    "it `model`",
    "bad_methods.ScopeValue": "ScopeValue.scopes: 'model' has the scope 'share'; did you mean 'shared'?",
    "bad_methods.ScopePrefix": "no registered tensor is called 'modle', or begins with it; did you mean 'model'?",
    "bad_methods.ScopeUnregistered": "no registered tensor is called 'anchor', or begins with it. There are model",
    "bad_methods.ComplexTensor": "the registered tensor 'spectrum' is complex (torch.complex64), and cannot be",
    "bad_methods.SparseTensor": "the registered tensor 'graph' is sparse (torch.sparse_coo), and cannot be",
    "bad_methods.ViewsStream": "ViewsStream.views has a stream 'labeled'; did you mean 'labelled'?",
    "bad_methods.ViewsField": "ViewsField.views: 'labelled' is 'weak'; map batch fields to names of views",
    "bad_methods.ViewsName": "ViewsName needs the view 'wek', and the data's pipeline has only weak, test",
    "bad_methods.HookName": "HookName.agregate is never called: did you mean 'aggregate'?",
    "bad_methods.KerasName": "KerasName.on_train_begin is never called, for there is no such hook; the nearest is "
    "'on_train_start'",
    "bad_methods.UnknownHook": "UnknownHook.on_epoch_end is never called, for there is no such hook; the nearest is ",
}
HOOKS = {
    "bad_methods.StepsZero": "a pass of 0 steps trains nothing: give a whole number from 1, or None",
    "bad_methods.OptimizerScope": "names 'personnal'; an optimiser's state is shared, personal or local",
    "bad_methods.Optimizer": "configure_optimizers returned a str for an optimiser",
    "bad_methods.SelectsNone": "SelectsNone.select_clients, round 0: it returned a NoneType; return a list of cohorts",
    "bad_methods.SelectsFlat": "SelectsFlat.select_clients, round 0: it returned an int for a cohort; return a list",
    "bad_methods.SelectsFloat": "it returned a float for a client id; return whole numbers",
    "bad_methods.SelectsUnknown": "there is no client 77; ids run from 0 to 2",
    "bad_methods.SendsNone": "broadcast returned a NoneType; return a dict of tensors by name",
    "bad_methods.SendsUnknown": "broadcast gives a tensor 'teacher', which the method has not registered",
    "bad_methods.SendsShape": "broadcast gives a tensor of shape [1] for 'model.conv1.weight', which has the shape [",
    "bad_methods.WorkNone": "local_work returned a NoneType; return a list with a Pass for every local epoch",
    "bad_methods.StepVector": "training_step returned a tensor of shape [2]",
    "bad_methods.StepRaises": "StepRaises, client 0 (83 images), round 0: KeyError: 'strong' (",
    "bad_methods.StepDetached": "round 0: training_step returned a loss that does not require grad",
    "bad_methods.UploadDict": "make_upload returned a dict; return an Upload, or None to leave the client out",
    "bad_methods.UploadShape": "make_upload gives a tensor of shape [1] for 'model.conv1.weight', which has the",
    "bad_methods.UploadLacks": "make_upload leaves out 'model.conv1.weight'; upload all shared tensors",
    "bad_methods.UploadMore": "make_upload gives a tensor 'model.more', which the method has not registered",
    "bad_methods.UploadWeight": "make_upload gives the weight -1.0; give a number from 0",
    "bad_methods.UploadBytes": "make_upload gives -1 for the number of bytes; give a whole number from 0",
    "bad_methods.UploadMeta": "make_upload gives a tensor on the device meta for 'model.conv1.weight'",
    "bad_methods.SendsBytes": "sent_bytes gives nan for the number of bytes; give a whole number from 0",
    "bad_methods.UploadNaN": "the uploaded model.conv1.weight is not finite",
    "bad_methods.AggregateShape": "AggregateShape.aggregate, round 0: 'model.conv1.bias' has the shape [",
    "bad_methods.RemembersNone": "RemembersNone.remember, round 0: remember returned a NoneType; return tensors",
    "bad_methods.RemembersKey": "remember gives something for 'server', which is not a client id; ids run",
    "bad_methods.PredictsNone": "PredictsNone.predict, round 0: predict returned a NoneType for 90 images",
    "bad_methods.PredictsLogits": "class probabilities run from ",
    "bad_methods.Exits": "the method ended the program (exit code 0); a hook returns, or raises an error",
    "bad_methods.Cancelled": "Cancelled, client 0 (83 images), round 0: CancelledError: by nobody (",
    "bad_methods.Scopes": "Scopes.optimizer_scopes, round 0: LookupError: no scope (",
    "bad_methods.BoundAnew": "the registered tensor 'count' is no longer the one registered in __init__ (self.x = ",
    "bad_methods.OthersImages": "the stream 'labelled' has the training image ",
}

# --- suites and published values

SUITE: dict[str, object] = {
    "paper": "toy",
    "title": "Toy",
    "published": None,
    "report": "last",
    "base": {"set": {"rounds": 1, "data": "federations.FewDigits"}},
    "datasets": {"A": {}},
    "labels": {"low": {"method": "fedavg"}},
    "tables": {"1": {"title": "One", "datasets": ["A"], "metrics": ["acc"], "rows": [{"method": "low"}]}},
    "scales": {"quick": {"seeds": [1]}},
}
ROW = {"title": "One", "datasets": ["A"], "metrics": ["acc"], "rows": [{"method": "low"}]}
SUITES: dict[str, dict[str, object]] = {
    "base is missing": {"base": ...},
    "unknown key 'titel'; did you mean 'title'?": {"titel": "T"},
    "toy.yaml: title: input should be a valid string (it is 3)": {"title": 3},
    "toy.yaml: paper: string should match pattern": {"paper": "a/b"},
    "unknown report 'first'": {"report": "first"},
    "toy.yaml: tables.1.published_runs: input should be greater than or equal to 1 (it is 0)": {
        "tables": {"1": {**ROW, "published_runs": 0}}
    },
    "unknown row that others are compared with 'lo'": {"tables": {"1": {**ROW, "control": "lo"}}},
    "toy.yaml: base: input should be a valid mapping (it is None)": {"base": None},
    "toy.yaml: base.sett is unknown": {"base": {"sett": {}}},
    "toy.yaml, 1/A/low: unknown method argument 'lrr'; did you mean 'lr'?": {
        "labels": {"low": {"method": "fedavg", "method.lrr": 1}}
    },
    "toy.yaml, 1/A/low: model mlp: unknown option depth; it has num_classes, ": {
        "labels": {"low": {"method": "fedavg", "model": "mlp", "model_args.depth": 3}}
    },
    "toy.yaml, 1/A/low: unknown model 'mpl'; did you mean 'mlp'?": {
        "base": {"set": {"rounds": 1, "data": "federations.FewDigits", "model": "mpl"}}
    },
    "toy.yaml, 1/A/low: rounds is 0; it must be at least 1": {"base": {"set": {"rounds": 0, "data": "digits"}}},
    "unknown method 'fedavgg'; did you mean 'fedavg'?": {"labels": {"low": {"method": "fedavgg"}}},
    "toy.yaml: labels.low: it needs a method, or minus, or pending": {"labels": {"low": {"data.beta": 1.0}}},
    "labels.low: input should be a valid mapping (it is None)": {"labels": {"low": None}},
    "unknown method label 'lo'; did you mean 'low'?": {
        "labels": {"low": {"method": "fedavg"}, "gain": {"minus": ["low", "lo"]}}
    },
    "toy.yaml, 1/A/gain: the table has no row high with the columns {}": {
        "labels": {"low": {"method": "fedavg"}, "high": {"method": "fedavg"}, "gain": {"minus": ["low", "high"]}},
        "tables": {"1": {**ROW, "rows": [{"method": "low"}, {"method": "gain"}]}},
    },
    "labels.gain.minus: list should have at least 2 items, not 1": {
        "labels": {"low": {"method": "fedavg"}, "gain": {"minus": ["low"]}}
    },
    "unknown data set label 'B'": {"tables": {"1": {**ROW, "datasets": ["B"]}}},
    "toy.yaml: tables.1.datasets: input should be a valid list (it is 'A')": {
        "tables": {"1": {**ROW, "datasets": "A"}}
    },
    "unknown method label 'mine'": {"tables": {"1": {**ROW, "rows": [{"method": "mine"}]}}},
    "toy.yaml: tables.1.rows.0.method is missing": {"tables": {"1": {**ROW, "rows": [{"methd": "low"}]}}},
    "toy.yaml: tables.1.rows.0.M: a column is a word or a number": {
        "tables": {"1": {**ROW, "rows": [{"method": "low", "M": [1]}]}}
    },
    "toy.yaml: tables.1.row is unknown": {"tables": {"1": {**ROW, "row": []}}},
    "unknown metric 'accuracy'": {"tables": {"1": {**ROW, "metrics": ["accuracy"]}}},
    "unknown table '7'": {"tables": {"1": {**ROW, "rows": [{"method": "low", "judged_by": 7}]}}},
    "toy.yaml: tables: mapping should have at least 1 item": {"tables": {}},
    "toy.yaml: scales.quick.seeds: list should have at least 1 item": {"scales": {"quick": {"seeds": []}}},
    "toy.yaml: scales.quick.seeds.0: input should be a valid integer (it is 'one')": {
        "scales": {"quick": {"seeds": ["one"]}}
    },
    "scales.quick.seeds: 1 stands there twice": {"scales": {"quick": {"seeds": [1, 1]}}},
    "toy.yaml: scales.quick.methods.fedavgg: unknown method 'fedavgg'; did you mean 'fedavg'?": {
        "scales": {"quick": {"seeds": [1], "methods": {"fedavgg": {}}}}
    },
    "toy.yaml: scales.quick.datasets.B: unknown data set label 'B'. Known: A": {
        "scales": {"quick": {"seeds": [1], "datasets": {"B": {}}}}
    },
    "scales.quick.without.lo: unknown method label 'lo'; did you mean 'low'? Known: low": {
        "scales": {"quick": {"seeds": [1], "without": {"lo": "why"}}}
    },
}
HEAD = "table,dataset,method,metric,value,std\n"
PUBLISHED = {
    "(no file)": "toy.yaml: published values are missing: there is no toy.csv or",
    "(empty)": "the column table is missing; there are none",
    "table,dataset,method,metric\n1,A,low,acc\n": "the column value is missing",
    HEAD + "1,A,low,acc\n": "line 2: it has not 6 values, as the header has columns",
    HEAD + "1,A,low,acc,high,\n": "line 2: value is 'high'; print a number",
    HEAD + "1,A,low,acc,50,wide\n": "line 2: std is 'wide'; print a number",
    HEAD + "1,A,low,acc,50,\n1,A,low,acc,51,\n": "two values for 1/A/low acc",
}

# --- records of complete runs: what was done to the folder of one

RECORDS = {
    "a digit of `final.acc` in `record.json` is changed": "record.json has final.acc = 99.87, but the rows of",
    "a digit of `acc` in `metrics.jsonl` is changed": "but the rows of metrics.jsonl give 99.87",
    "both are changed alike": "is not as the run wrote it: the digest differs",
    "`bytes_up` is changed": "is not as the run wrote it: the digest differs",
    "the digest is deleted": "is not as the run wrote it: the digest differs",
    "a row is deleted": "is not as the run wrote it: the digest differs",
    "the last row is deleted": "rows are missing, or do not belong to this run",
    "`metrics.jsonl` is deleted": "rows are missing, or do not belong to this run",
    "a line of `metrics.jsonl` is torn": "line 1 is damaged",
    "a row of `metrics.jsonl` stands there twice": "line 2 has round 0 after round 0",
    "a row of `metrics.jsonl` has no `acc`": "line 1 is not a row of a run: acc is missing",
    "`acc` is a text in `metrics.jsonl`": "line 1 is not a row of a run: acc: input should be a valid number",
    "`metrics.jsonl` is a pipe": "metrics.jsonl: cannot be read (it is no regular file)",
    "`record.json` is cut short": "record.json: cannot be read",
    "`record.json` is empty": "record.json: cannot be read",
    "`record.json` is a list": "record.json: not a valid record",
    "`timing.seconds` is a text in `record.json`": "not a valid record: timing.seconds",
    "`timing.seconds` is missing in `record.json`": "not a valid record: timing.seconds is missing",
    "`code_versions` is null in `record.json`": "environment.code_versions",
    "`config` is missing in `record.json`": "not a valid record: config is missing",
    "`record.json` is of a newer version": "schema 9 is newer than 2; update fssl-bench",
}


def toy(changes: dict[str, object]) -> str:
    """Write the toy suite with other entries; ``...`` leaves one out."""
    entries = {name: value for name, value in {**SUITE, **changes}.items() if value is not ...}
    return json.dumps(entries)


def shown(changes: dict[str, object]) -> str:
    """What a suite says otherwise, for people."""
    (name, value), *_ = changes.items()
    return f"no `{name}`" if value is ... else f"`{name}: {json.dumps(value)}`"


def cases() -> list[Case]:
    """Return all cases."""
    files = {"toy.yaml": toy({})}
    found = [Case("Commands", f"`{given}`", says, given, files) for given, says in COMMANDS.items()]
    found += [Case("Options of `fit`", f"`{given}`", says, f"{FIT} {given}", {}) for given, says in OPTIONS.items()]
    for text, says in CONFIGS.items():
        command = f"fit --config config.yaml --wandb off {'' if 'meth' in text else '--method fedavg'} "
        command += "" if "data:" in text else "--data digits"
        found.append(Case("Configuration files", f"`{text}`", says, command, {"config.yaml": text}))
    found += [Case("Data", f"`{given}`", says, f"{FIT} {given}", {}) for given, says in DATA.items()]
    found += [Case("Partitions", f"`{given}`", says, f"{FIT} {given}", {}) for given, says in PARTITIONS.items()]
    for area, table, starts in (("Methods: declarations", PLUGINS, False), ("Methods: hooks", HOOKS, True)):
        found += [Case(area, f"`{name}`", says, f"{FIT} --method {name}", {}, starts) for name, says in table.items()]
    for says, changes in SUITES.items():
        found.append(Case("Suites", shown(changes), says, TABLE, {"toy.yaml": toy(changes)}))
    for text, says in PUBLISHED.items():
        files = {"toy.yaml": toy({"published": "toy.csv"})}
        if text != "(no file)":
            files["toy.csv"] = "" if text == "(empty)" else text
        found.append(Case("Published values", f"`{text}`", says, TABLE, files))
    found += [Case("Records", given, says, "plot runs/toy", {}) for given, says in RECORDS.items()]
    return found
