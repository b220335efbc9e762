"""Which messages a start takes for maybe delivered: those that a crash left so, and no others."""

from __future__ import annotations

from tests.fakes.host import Boot, Host, small_settings, texts


async def crashed(host: Host) -> str:
    """Start again after a kill, with a message that may have been delivered before it and is due in ten seconds."""
    client = await host.start_connected()
    await client.put("now", host.now_ms)
    receipt = (await client.put("maybe", host.now_ms + 10_000))["receipt"]
    await host.settled()
    await host.restart_killed()
    return str(receipt)


async def test_what_was_accepted_after_a_crash_is_certain_behind_an_orderly_stop(boot: Boot) -> None:
    host = boot(small_settings())
    maybe = await crashed(host)
    client = await host.client()
    after = (await client.put("after", host.now_ms + 15_000))["receipt"]
    expires_ms = host.now_ms + 2_000
    short = (await client.put("short", host.now_ms + 1_500, expires_ms=expires_ms))["receipt"]
    await host.stop()
    await host.sleep_ms(2_500)
    for _ in range(3):  # one stop after the other
        await host.start()
        await host.sleep_ms(100)
        await host.stop()
    client = await host.start_connected()
    await host.sleep_ms(500)
    assert await client.lookup(short) == ["expired"]
    assert await client.cancel(after, maybe) == ["cancelled", "too_late"]
    await host.sleep_ms(20_000)
    assert sorted(texts(await client.pull())) == ["maybe", "now"]
    await host.balanced(pending=0)


async def test_an_orderly_stop_whose_uncertain_messages_have_outcomes_is_clean(boot: Boot) -> None:
    host = boot(small_settings())
    maybe = await crashed(host)
    await host.sleep_ms(100_000)
    assert await (await host.client()).lookup(maybe) == ["delivered"]
    await host.restart()
    assert host.server.parts.opened.sequences.clean


async def test_a_crash_behind_an_orderly_stop_makes_its_own_messages_uncertain(boot: Boot) -> None:
    host = boot(small_settings())
    await crashed(host)
    client = await host.client()
    after = (await client.put("after", host.now_ms + 15_000))["receipt"]
    await host.restart()
    await host.restart_killed()
    assert await (await host.client()).cancel(after) == ["too_late"]
    await host.sleep_ms(20_000)
    await host.balanced(pending=0)
