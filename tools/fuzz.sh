#!/usr/bin/env bash
# Runs every fuzz target of the module for the given time (default 20s), one after the other.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-20s}
go list ./... | while read -r pkg; do
	{ go test -list '^Fuzz' "$pkg" 2>/dev/null | grep '^Fuzz' || true; } | while read -r target; do
		echo "fuzz: $pkg $target for $time"
		go test -run '^$' -fuzz "^$target\$" -fuzztime "$time" "$pkg" </dev/null
	done
done
