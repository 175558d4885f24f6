"""scripts/build and scripts/demo: a typing error is told at once, with what
there is."""

import json
import os
import subprocess
import unittest

import ranks


def refused(script, *arguments):
    """What a script says that ends before it does anything."""
    done = subprocess.run(
        [os.path.join(ranks.ROOT, "scripts", script), *arguments], text=True,
        stdin=subprocess.DEVNULL, capture_output=True, timeout=20, check=False)
    assert done.returncode == 2 and not done.stdout, done
    return done.stderr


class Scripts(unittest.TestCase):
    def test_build_knows_the_presets(self):
        with open(os.path.join(ranks.ROOT, "CMakePresets.json"),
                  encoding="utf-8") as file:
            presets = {preset["name"] for preset in
                       json.load(file)["configurePresets"]
                       if not preset.get("hidden")}
        told = refused("build", "relase")
        self.assertIn("unknown preset 'relase'", told)
        self.assertEqual(
            set(told.partition("known: ")[2].strip().split(", ")), presets)

    def test_demo_knows_the_options(self):
        for arguments, option in ((["--setps", "5"], "--setps"),
                                  (["--steps", "5", "--setps=5"], "--setps=5")):
            told = refused("demo", *arguments)
            self.assertIn(f"unknown option '{option}'", told)
            known = told.partition("known: ")[2].split()
            self.assertLess({"--steps", "--strategy", "--lr"}, set(known))


if __name__ == "__main__":
    unittest.main()
