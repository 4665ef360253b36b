"""The contract refuses every planted fault, says why, and lets the same method without the fault pass."""

from collections.abc import Iterator

import pytest

from benchmark.contract.checks import CHECKS, Check, parametrize_with_checks
from benchmark.contract.federations import Subject
from datamodules.common.errors import RunError
from methods.base import FedMethod
from planted_faults import memory, sound, surroundings, thieves, training

SURVIVES = r"depends on visits before it, .* It may be .*{}.*Register it"
BOUND_ANEW = "the registered tensor 'prior' is no longer the one registered in __init__"
OTHER_LABELS = "with other hidden labels it trains another model"
OTHER_TESTS = "with other test images it trains another model"
COUNTERS = "batch_idx, current_epoch and global_step are Python numbers"

FAULTS: dict[str, dict[type[FedMethod], str]] = {
    "nothing_unregistered_survives_a_visit": {
        memory.LeakingPrior: SURVIVES.format(r"self\.prior"),
        memory.LastingAttribute: SURVIVES.format(r"self\.visits"),
        memory.LastingClassAttribute: SURVIVES.format(r"LastingClassAttribute\.seen"),
        memory.LastingMixin: SURVIVES.format(r"Counts\.seen"),
        memory.LastingHelper: SURVIVES.format(r"helper\.VISITED"),
        memory.LastingCache: SURVIVES.format(r"memory\.pace"),
        memory.LastingCachedMethod: SURVIVES.format(r"LastingCachedMethod\.of_client"),
        memory.LateClassAttribute: SURVIVES.format(r"LateClassAttribute\.visits"),
        memory.StatePerClient: SURVIVES.format(r"self\.priors"),
        memory.LastingBuffer: SURVIVES.format(r"self\.pace"),
        memory.BindsAnew: BOUND_ANEW,
    },
    "resume_is_exact": {
        memory.ServerMemory: r"in no registered tensor\. It may be .*self\.rounds.*Register it",
        memory.LastingCachedMethod: r"in no registered tensor\. It may be .*of_client.*Register it",
    },
    "the_averaged_model_is_the_mean_of_what_the_server_held": {
        memory.PredictsByMemory: "the averaged model is not the mean of the last two global models"
    },
    "registered_tensors_are_its_own": {memory.CommonBuffer: "memory that all instances share.*usual"},
    "hooks_keep_to_what_is_theirs": {
        memory.BroadcastInPlace: r"broadcast changes \['server'\]\['usual'\]",
        memory.CountsSelections: "select_clients changes usual: the next visit undoes it",
        memory.LabelsInPlace: r"local_work changes \['sites'\]\[0\]\['labels'\]",
        training.BatchInPlace: r"training_step changes batch\['unlabelled'\]\['x'\]",
        training.ConstantOnTheHost: r"full makes a tensor \[10\] on the CPU at \S*training\.py:\d+",
        training.CopiesToTheHost: r"moves a tensor to the CPU at \S*training\.py:\d+",
        training.MakesAConstant: r"copies numbers to the device at \S*training\.py:\d+",
        surroundings.TorchDraw: "training_step draws from torch's global generator",
        surroundings.TorchDrawOfGradients: "on_before_optimizer_step draws from torch's global generator",
        surroundings.NumpyDraw: "weights draws from numpy.random",
        surroundings.PythonDraw: "learning_rate draws from Python's random",
    },
    "circumstances_do_not_matter": {
        surroundings.UnseededDraw: "draws from a generator that nobody seeds",
        memory.LastingAttribute: "clients that train in another order",
        surroundings.ReadsProcess: "It reads the id of the process ",
        surroundings.ReadsRank: "It reads the rank or the number of processes",
        surroundings.ReadsClock: "It reads the clock",
    },
    "hidden_labels_and_test_images_are_not_read": {
        **dict.fromkeys((surroundings.TestStatistic, surroundings.TestPrediction), OTHER_TESTS),
        **dict.fromkeys((thieves.AsksForThem, thieves.FindsModules, thieves.FindsSites), OTHER_LABELS),
        **dict.fromkeys((thieves.FindsTensors, thieves.FindsCopies), OTHER_LABELS),
        **dict.fromkeys((thieves.KeepsThem, thieves.KeepsTheModule), OTHER_LABELS),
        thieves.Walks: "nothing leads to hidden labels",
    },
    "names_of_clients_do_not_matter": {surroundings.KnowsClients: "looks at the id of a client"},
    "a_visit_is_a_fit": {training.KnowsTrainers: "a plain Trainer over a client's batches takes other steps"},
    "slots_equal_the_reference": {
        memory.LastingAttribute: "clients that train in three copies",
        memory.BindsAnew: BOUND_ANEW,
    },
    "replayed_steps_equal_the_reference": {
        surroundings.TorchDraw: "may not draw from torch's global generator",
        training.DrawsOnTheHost: r"(randn|normal).*at \S*training\.py:\d+",
        training.ReadsBack: r"_local_scalar_dense.*at \S*training\.py:\d+",
        training.ArrayOfALoss: r"numpy.*at \S*training\.py:\d+",
        **dict.fromkeys((training.CountsBatches, training.CountsEpochs, training.CountsSteps), COUNTERS),
        training.BranchesOnTheRound: rf"self\.visit\.round, {COUNTERS}.*StepNumber",
    },
    "a_run_learns": {
        training.Ascends: "does not learn",
        training.TakesNoStep: r"'model\..*' does not change",
        training.LeavesAPartOut: "'factor' does not change",
        surroundings.PlacesForPositions: "training images that the site does not hold",
    },
    "pseudo_labels_flow": {
        training.Idle: "selected no pseudo-label",
        training.Unmoved: "replacing those images with noise does not change the model",
    },
    "bytes_are_counted": {training.FreeOfCharge: "a round sends 0 bytes down"},
    "clients_with_one_image_or_none": {training.WantsTwoImages: "IndexError"},
    "default_arguments_are_plain": {training.OddArgument: "the default of 'pair' is a tuple"},
    "lower_precisions_are_close_to_double": {
        training.HalvesInSingle: "in 32-true the weights end",
        training.Rounds: "in bf16-mixed the weights end",
    },
}
PAIRS = [
    pytest.param(fault, check, told, id=f"{fault.__name__}-{check}")
    for check, faults in FAULTS.items()
    for fault, told in faults.items()
]

LEGITIMATE: list[tuple[type[FedMethod], str]] = [
    (sound.Quantised, "bytes_are_counted"),
    (sound.LargeStatistic, "bytes_are_counted"),
    (sound.KnownLosses, "hooks_keep_to_what_is_theirs"),
    (sound.KnownLosses, "default_arguments_are_plain"),
    (sound.SendsNoise, "names_of_clients_do_not_matter"),
]
"""Methods that do what the documents allow, and the check that is about it."""


@pytest.fixture(scope="module", autouse=True)
def another_data_module() -> Iterator[None]:
    """Somebody in the process has the labels that the contract hides."""
    data = Subject(sound.Sound).data(labelled_clients=4)
    data.clients[0], data.clients[1] = data.client(0), data.client(1)
    yield
    del data


def test_every_check_refuses_something() -> None:
    """None of them can be lost, or pass whatever it is given, unnoticed."""
    assert set(FAULTS) == set(CHECKS)


@pytest.mark.parametrize(("fault", "check", "told"), PAIRS)
def test_a_planted_fault_is_refused(fault: type[FedMethod], check: str, told: str) -> None:
    """By the check that is for it, with an error that names the method and the cause."""
    with pytest.raises((AssertionError, RunError), match=rf"(?s){fault.__name__}.*{told}"):
        CHECKS[check](fault)


@pytest.mark.parametrize(("method", "check"), LEGITIMATE)
def test_what_is_no_fault_passes(method: type[FedMethod], check: str) -> None:
    CHECKS[check](method)


@parametrize_with_checks(sound.Sound, sound.Closed, sound.NotYetKnown)
def test_other_packages_loop_over_the_same_checks(method: type[FedMethod], check: Check) -> None:
    """Methods without a fault pass all of them."""
    check(method)
