from collections import Counter

from support.ranks import run_on_ranks

from embedkit import distributed
from embedkit.distributed import JobQueue


def test_every_job_is_claimed_by_one_rank_and_its_result_arrives() -> None:
    run_on_ranks(3, work_through)


def work_through() -> None:
    jobs, claimed = 20, list[int]()
    queue = JobQueue("test", jobs)
    while (job := queue.claim(from_end=distributed.is_main())) is not None:
        claimed.append(job)
        queue.post(job, {"rank": distributed.rank(), "job": job})
    assert claimed == sorted(claimed, reverse=distributed.is_main())
    distributed.barrier()
    results = dict(queue.take(range(jobs)))
    assert [result["job"] for result in results.values()] == list(range(jobs))
    assert Counter(result["rank"] for result in results.values())[distributed.rank()] == len(
        claimed
    )
    assert not queue.close()


def test_a_closed_queue_has_no_job_left() -> None:
    run_on_ranks(2, close_early)


def close_early() -> None:
    queue = JobQueue("test", 5)
    if distributed.is_main():
        assert (queue.claim(), queue.claim(from_end=True)) == (0, 4)
        queue.post(4, "done")
        assert list(queue.take([0, 4])) == [(4, "done")]
        assert queue.close() == {1, 2, 3}
    distributed.barrier()
    assert queue.claim() is None
    # Another queue of the same ranks begins anew.
    if distributed.is_main():
        assert JobQueue("other", 1).claim() == 0
