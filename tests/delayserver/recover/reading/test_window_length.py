"""The length of the windows is known to the recovery tools when no window file is left."""

from __future__ import annotations

from delayserver.recover.reading.capture import capture
from delayserver.recover.reading.findings import Findings
from tests.fakes.host import Boot, faked_settings


async def test_the_length_of_windows_is_known_after_all_of_them_are_retired(boot: Boot) -> None:
    host = await boot.started(faked_settings(storage={"window_ms": 10_000, "retention_ms": 20_000}))
    await (await host.client()).put("m", host.now_ms + 3_000)
    await host.sleep_ms(120_000)
    await host.stop()
    logs = [path for log in ("schedule_log", "dispatch_log") for path in host.disk.files(f"/data/{log}")]
    assert not [path for path in logs if path.endswith(".log")]
    taken = capture(host.disk, "/data", Findings())
    taken.close()
    assert taken.files.window_ms == 10_000
