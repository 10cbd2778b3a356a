#!/usr/bin/env bash
# Fetches what the tests need and no Go module brings, through the ordinary package clients, into .tools
# (or $BARNABAS_TOOLS). Each step leaves a stamp of its inputs and is done again only when they change.
# Usage: tools/fetch.sh [step...]   steps: see ALL below; without arguments all of them.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
dir=${BARNABAS_TOOLS:-$root/.tools}
ALL=(staticcheck kafka-0.8.1.1 kafka-0.8.2.2 kafka-0.9.0.1 kafka-0.10.2.2 kafka-1.1.1 kafka-4.4 zookeeper-3.9.5 classes kcat venv pykafka node sarama)
staticcheck_version=v0.8.2 # release 2026.2.2

say() { printf 'tools: %s\n' "$*"; }
die() { printf 'tools: %s\n' "$*" >&2; exit 1; }
has() { command -v "$1" >/dev/null 2>&1 || die "$1 is missing: install $2 and run make tools again"; }

# once NAME INPUT... -- COMMAND...: runs the command unless NAME's stamp says that it ran with the same inputs.
once() {
	local name=$1 inputs=() sum
	shift
	while [ "$1" != -- ]; do inputs+=("$1"); shift; done
	shift
	sum=$(cat -- "${inputs[@]}" | sha256sum | cut -d' ' -f1)
	if [ "$(cat "$dir/stamps/$name" 2>/dev/null)" = "$sum" ]; then
		return
	fi
	say "$name"
	rm -f "$dir/stamps/$name"
	"$@"
	printf '%s\n' "$sum" >"$dir/stamps/$name"
}

# The jars of one pom, all versions as the pom resolves them.
get_jars() {
	has java "a JDK of 17 or later"; has mvn Maven
	rm -rf "${dir:?}/$1"
	mvn -q -B -f "$root/tools/maven/$1.xml" \
		org.apache.maven.plugins:maven-dependency-plugin:copy-dependencies \
		-DincludeScope=runtime -DoutputDirectory="$dir/$1/lib"
}

# Our Java test programs, against the 0.8.2.2 client that they are written for.
get_classes() {
	has javac "a JDK of 17 or later"
	rm -rf "$dir/classes"
	mkdir -p "$dir/classes"
	javac -nowarn -Xlint:-options --release 8 -cp "$dir/kafka-0.8.2.2/lib/*" -d "$dir/classes" "$root"/integration/java/*.java
}

# kcat is a distribution's package: installed when we may, asked for when not.
get_kcat() {
	command -v kcat >/dev/null 2>&1 && return
	if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
		die "kcat is missing: install it (Debian: apt-get install kcat) and run make tools again"
	fi
	say kcat
	DEBIAN_FRONTEND=noninteractive apt-get update -qq
	DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends kcat >/dev/null
}

# get_venv NAME REQUIREMENTS
get_venv() {
	has python3 "Python 3"
	rm -rf "${dir:?}/$1"
	python3 -m venv "$dir/$1"
	"$dir/$1/bin/pip" install -q --disable-pip-version-check -r "$2"
}

get_node() {
	has npm "Node.js with npm"
	rm -rf "$dir/node"
	mkdir -p "$dir/node"
	cp "$root/tools/node/package.json" "$dir/node/"
	npm --prefix "$dir/node" install --silent --no-package-lock --no-audit --no-fund --omit=optional
}

get_staticcheck() {
	has go Go
	GOBIN="$dir/bin" go install "honnef.co/go/tools/cmd/staticcheck@$staticcheck_version"
}

# A member of a group by sarama, a module of its own: ours does not depend on it.
get_sarama() {
	has go Go
	(cd "$root/tools/sarama" && GOFLAGS=-mod=readonly go build -o "$dir/bin/sarama" .)
}

mkdir -p "$dir/stamps"
if command -v flock >/dev/null 2>&1; then # one fetch at a time in one folder
	exec 9>"$dir/stamps/.lock"
	flock 9
fi
self=$root/tools/fetch.sh
for step in "${@:-${ALL[@]}}"; do
	case $step in
	kafka-* | zookeeper-*) once "$step" "$root/tools/maven/$step.xml" -- get_jars "$step" ;;
	classes) once classes "$root"/integration/java/*.java -- get_classes ;;
	kcat) get_kcat ;;
	venv) once venv "$root/tools/requirements.txt" -- get_venv venv "$root/tools/requirements.txt" ;;
	pykafka) once pykafka "$root/tools/pykafka.txt" -- get_venv pykafka "$root/tools/pykafka.txt" ;;
	sarama) once sarama "$root"/tools/sarama/* -- get_sarama ;;
	node) once node "$root/tools/node/package.json" -- get_node ;;
	staticcheck) once staticcheck "$self" -- get_staticcheck ;;
	*) die "unknown step $step; steps: ${ALL[*]}" ;;
	esac
done
