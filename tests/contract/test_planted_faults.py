"""The contract refuses every planted fault, says why, and lets the same method without the fault pass."""

from collections.abc import Iterator

import pytest

from benchmark.contract import irrelevant, isolation, runs, steps
from benchmark.contract.checks import CHECKS, Check, title
from benchmark.contract.federations import SIDE, FewerDigits
from datamodules.common.errors import RunError
from methods.base import FedMethod
from planted_faults import memory, sound, surroundings, thieves, training

SURVIVES = r"depends on visits before it, .* It is .*{}.*Register it"

FAULTS: list[tuple[type[FedMethod], Check, str]] = [
    (memory.LeakingPrior, isolation.check_nothing_unregistered_survives_a_visit, SURVIVES.format(r"self\.prior")),
    (memory.LastingAttribute, isolation.check_nothing_unregistered_survives_a_visit, SURVIVES.format(r"self\.visits")),
    (
        memory.LastingClassAttribute,
        isolation.check_nothing_unregistered_survives_a_visit,
        SURVIVES.format(r"LastingClassAttribute\.seen"),
    ),
    (
        memory.LastingMixin,
        isolation.check_nothing_unregistered_survives_a_visit,
        SURVIVES.format(r"Counts\.seen"),
    ),
    (
        memory.LastingHelper,
        isolation.check_nothing_unregistered_survives_a_visit,
        SURVIVES.format(r"helper\.VISITED"),
    ),
    (
        memory.LastingCache,
        isolation.check_nothing_unregistered_survives_a_visit,
        r"depends on visits before it, .* It may be what functools\.cache keeps for planted_faults\.memory\.pace",
    ),
    (
        memory.LastingCachedMethod,
        isolation.check_nothing_unregistered_survives_a_visit,
        r"depends on visits before it, .* It may be what functools\.cache keeps for LastingCachedMethod\.of_client",
    ),
    (memory.LastingCachedMethod, runs.check_resume_is_exact, r"in no registered tensor\. Register it"),
    (
        memory.LateClassAttribute,
        isolation.check_nothing_unregistered_survives_a_visit,
        SURVIVES.format(r"LateClassAttribute\.count"),
    ),
    (memory.StatePerClient, isolation.check_nothing_unregistered_survives_a_visit, SURVIVES.format(r"self\.priors")),
    (
        memory.LastingBuffer,
        isolation.check_nothing_unregistered_survives_a_visit,
        SURVIVES.format(r"self\.pace \(persistent=False\)"),
    ),
    (memory.ServerMemory, runs.check_resume_is_exact, r"in no registered tensor\. It is self\.rounds\. Register it"),
    (
        memory.PredictsByMemory,
        runs.check_the_averaged_model_is_the_mean_of_what_the_server_held,
        "the averaged model is not the mean of the last two global models",
    ),
    (
        memory.BroadcastInPlace,
        isolation.check_hooks_change_nothing_they_are_given,
        "broadcast changes the server's usual",
    ),
    (
        memory.LabelsInPlace,
        isolation.check_hooks_change_nothing_they_are_given,
        "local_work changes the labels of client 0",
    ),
    (memory.CommonBuffer, isolation.check_registered_tensors_are_its_own, "memory that all instances share.*usual"),
    *(
        (memory.BindsAnew, check, "the registered tensor 'prior' is no longer the one registered in __init__")
        for check in (isolation.check_nothing_unregistered_survives_a_visit, steps.check_slots_equal_the_reference)
    ),
    (
        surroundings.PlacesForPositions,
        runs.check_a_run_is_finite_and_learns,
        "was given training images that the site does not hold",
    ),
    (training.BatchInPlace, isolation.check_a_step_leaves_its_batch_alone, r"in place.*batch\['unlabelled'\]\['x'\]"),
    (
        surroundings.TorchDraw,
        isolation.check_draws_come_from_streams_of_the_visit,
        "training_step draws from torch's global generator",
    ),
    (
        surroundings.TorchDrawBetweenSteps,
        isolation.check_draws_come_from_streams_of_the_visit,
        "on_train_epoch_start draws from torch's global generator",
    ),
    (
        surroundings.TorchDraw,
        steps.check_replayed_steps_equal_the_reference,
        "may not draw from torch's global generator",
    ),
    (
        surroundings.NumpyDraw,
        isolation.check_draws_come_from_streams_of_the_visit,
        "local_work draws from numpy.random",
    ),
    (
        surroundings.NumpyDrawOfWeights,
        isolation.check_draws_come_from_streams_of_the_visit,
        "weights draws from numpy.random",
    ),
    (
        surroundings.TorchDrawOfGradients,
        isolation.check_draws_come_from_streams_of_the_visit,
        "on_before_optimizer_step draws from torch's global generator",
    ),
    (
        surroundings.PythonDraw,
        isolation.check_draws_come_from_streams_of_the_visit,
        "learning_rate draws from Python's random",
    ),
    (surroundings.UnseededDraw, irrelevant.check_same_seed_same_bits, "draws from a generator that nobody seeds"),
    (surroundings.ReadsProcess, irrelevant.check_the_host_does_not_matter, "It reads the id of the process "),
    (surroundings.ReadsProcessAtFirst, irrelevant.check_the_host_does_not_matter, "It reads the id of the process "),
    (surroundings.ReadsRank, irrelevant.check_the_host_does_not_matter, "It reads the rank or the number of processes"),
    (surroundings.ReadsClock, irrelevant.check_the_host_does_not_matter, "It reads the clock"),
    (
        surroundings.TestStatistic,
        irrelevant.check_test_images_are_not_used,
        "with other test images it trains another model",
    ),
    (
        surroundings.TestPrediction,
        irrelevant.check_test_images_are_not_used,
        "with other test images it trains another model",
    ),
    *(
        (thief, irrelevant.check_hidden_labels_are_not_read, "with other hidden labels it trains another model")
        for thief in (
            thieves.AsksForThem,
            thieves.FindsModules,
            thieves.FindsSites,
            thieves.FindsTensors,
            thieves.FindsCopies,
            thieves.KeepsThem,
            thieves.KeepsTheModule,
        )
    ),
    (thieves.Walks, irrelevant.check_hidden_labels_are_not_read, "nothing leads to hidden labels"),
    (surroundings.KnowsClients, runs.check_names_of_clients_do_not_matter, "looks at the id of a client"),
    (training.Ascends, runs.check_a_run_is_finite_and_learns, "does not learn"),
    (training.Idle, runs.check_pseudo_labels_flow, "selected no pseudo-label"),
    (training.Unmoved, runs.check_pseudo_labels_flow, "replacing those images with noise does not change the model"),
    (training.KnowsTrainers, steps.check_a_visit_is_a_fit, "a plain Trainer over a client's batches takes other steps"),
    (memory.LastingAttribute, steps.check_slots_equal_the_reference, "clients that train in three copies"),
    (memory.LastingAttribute, irrelevant.check_order_of_visits_is_irrelevant, "clients that train in another order"),
    *(
        (fault, isolation.check_all_tensors_lie_on_the_device, rf"{told} at \S*training\.py:\d+")
        for fault, told in (
            (training.ConstantOnTheHost, r"full makes a tensor \[10\] on the CPU"),
            (training.PositionsOnTheHost, "arange makes a tensor .* on the CPU"),
            (training.CopiesToTheHost, "moves a tensor to the CPU"),
            (training.MakesAConstant, "copies numbers to the device"),
        )
    ),
    *(
        (fault, steps.check_replayed_steps_equal_the_reference, rf"{told}.*at \S*training\.py:\d+")
        for fault, told in (
            (training.DrawsOnTheHost, "(randn|normal)"),
            (training.ReadsBack, "_local_scalar_dense"),
            (training.ArrayOfALoss, "numpy"),
        )
    ),
    *(
        (
            fault,
            steps.check_replayed_steps_equal_the_reference,
            "batch_idx, current_epoch and global_step are Python numbers",
        )
        for fault in (training.CountsBatches, training.CountsEpochs, training.CountsSteps)
    ),
    (training.FreeOfCharge, runs.check_bytes_are_counted, "a round sends 0 bytes down"),
    (training.WantsTwoImages, runs.check_clients_with_one_image_or_none, "IndexError"),
    (training.OddArgument, runs.check_default_arguments_are_plain, "the default of 'pair' is a tuple"),
    (training.HalvesInSingle, runs.check_single_precision_is_close_to_double, "in float32 the weights end"),
    (training.Rounds, runs.check_bf16_autocast_is_close_to_double, "in bf16 the weights end"),
    (training.Rounds, runs.check_half_autocast_is_close_to_double, "in float16 the weights end"),
    (training.Steep, runs.check_half_autocast_is_close_to_double, "16-mixed skips .* of a round's steps"),
    (
        training.Unscaled,
        irrelevant.check_a_scaled_loss_leaves_every_bit,
        "a gradient is used while it is scaled, or was never",
    ),
    (training.ClipsScaled, irrelevant.check_a_scaled_loss_leaves_every_bit, "a gradient is used while it is scaled"),
]


@pytest.fixture(scope="module", autouse=True)
def another_data_module() -> Iterator[None]:
    """Somebody in the process has the labels that the contract hides."""
    data = FewerDigits(num_clients=4, labelled_clients=4, partition="iid", side=SIDE)
    data.setup()
    data.clients[0], data.clients[1] = data.client(0), data.client(1)
    yield
    del data


def test_every_check_refuses_something() -> None:
    """None of them can be lost, or pass whatever it is given, unnoticed."""
    assert {check for _, check, _ in FAULTS} == set(CHECKS)


@pytest.mark.parametrize(
    ("fault", "check", "told"), FAULTS, ids=[f"{fault.__name__}-{title(check)}" for fault, check, _ in FAULTS]
)
def test_a_planted_fault_is_refused(fault: type[FedMethod], check: Check, told: str) -> None:
    """By the check that is for it, with an error that names the method and the cause."""
    with pytest.raises((AssertionError, RunError), match=rf"(?s){fault.__name__}.*{told}"):
        check(fault)


@pytest.mark.parametrize("method", [sound.Quantised, sound.LargeStatistic, sound.KnownLosses])
@pytest.mark.parametrize(
    "check",
    [
        runs.check_bytes_are_counted,
        isolation.check_a_step_leaves_its_batch_alone,
        runs.check_default_arguments_are_plain,
    ],
    ids=title,
)
def test_what_is_no_fault_passes(method: type[FedMethod], check: Check) -> None:
    """Methods that do what the documents allow."""
    check(method)


@pytest.mark.parametrize("check", CHECKS, ids=title)
def test_the_same_method_without_a_fault_passes(check: Check) -> None:
    """All checks."""
    check(sound.Sound)
