"""A device, a link and a fleet of a user's own, as TOML."""

from __future__ import annotations

DEVICE = """
name = "board"
title = "A board"
reference_hardware = "one"
link = "wifi-phone"
[memory]
total_bytes = { value = 1_000_000, mark = "vendor", source = "its data sheet, 2026" }
training_bytes = { value = 800_000, mark = "measured", source = "measured on it, 2026" }
[compute]
inference_gmacs_per_s = { value = 2, mark = "measured", source = "measured on it, 2026" }
inference_single_thread_gmacs_per_s = { value = 1, mark = "measured", source = "measured on it, 2026" }
training_gmacs_per_s = { value = 0.5, mark = "assumed", source = "nobody publishes it" }
[power]
idle_w = { value = 0.25, mark = "measured", source = "measured on it, 2026" }
load_w = { value = 3, mark = "measured", source = "measured on it, 2026" }
energy_pj_per_mac = { value = 400, mark = "derived", source = "load over the rate" }
[thermal]
burst_s = { value = 10, mark = "measured", source = "measured on it, 2026" }
sustained_share = { value = 0.5, mark = "measured", source = "measured on it, 2026" }
"""
LINK = """
name = "wire"
title = "A wire"
download_mbps = { value = 8, mark = "measured", source = "measured on it, 2026" }
upload_mbps = { value = 4, mark = "measured", source = "measured on it, 2026" }
rtt_ms = { value = 50, mark = "measured", source = "measured on it, 2026" }
download_nj_per_byte = { value = 100, mark = "measured", source = "measured on it, 2026" }
upload_nj_per_byte = { value = 300, mark = "measured", source = "measured on it, 2026" }
spread_sigma = { value = 0.5, mark = "measured", source = "measured on it, 2026" }
"""
FLEET = """
name = "mine"
title = "Mine"
[mix]
mark = "assumed"
source = "made for a test"
[budget]
round_deadline_s = 60
[[class]]
device = "board.toml"
share = 0.25
[class.budget]
upload_bytes = 1000
[[class]]
device = "laptop"
share = 0.75
[behaviour]
eligible_share = { value = 0.25, mark = "measured", source = "measured on them, 2026" }
day_night_ratio = { value = 3, mark = "measured", source = "measured on them, 2026" }
peak_hour = { value = 23.5, mark = "measured", source = "measured on them, 2026" }
drop_out = { value = 0.05, mark = "measured", source = "measured on them, 2026" }
interrupted = { value = 0, mark = "measured", source = "measured on them, 2026" }
response_sigma = { value = 0.1, mark = "assumed", source = "nobody publishes it" }
over_selection = { value = 1, mark = "vendor", source = "its data sheet, 2026" }
[[state]]
name = "free"
chance = 0.75
memory_share = 1
speed_share = 1
mark = "assumed"
source = "made for a test"
[[state]]
name = "busy"
chance = 0.25
memory_share = 0.5
speed_share = 0.8
mark = "measured"
source = "measured on them, 2026"
"""


SESSIONS = """session_sigma = { value = 0.3, mark = "measured", source = "measured on it, 2026" }
network_nj_per_byte = { value = 24_000, mark = "derived", source = "all-in less the radio" }
"""
