# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# For scripts to source: builds programs of Kubernetes and its tools from their Go modules, once, into the user's cache.
# `programs NAME...` makes them and adds their folder to PATH. Without Go or the modules it fails and says why.
# shellcheck disable=SC2034 # The scripts that source this use them.
kubernetes=1.34.4 helm=3.19.5 kubeconform=0.7.0 prometheus_operator=0.85.0
cache=${XDG_CACHE_HOME:-$HOME/.cache}/hugelift/kubernetes-$kubernetes
modules=$(dirname "${BASH_SOURCE[0]}")/programs
export CGO_ENABLED=0

# Builds one program of Kubernetes, of the module in the folder `programs`.
build_kubernetes() {
  local minor=${kubernetes#*.} x=k8s.io/component-base/version.git
  minor=${minor%%.*}
  (cd "$modules" && nice -n 19 go build -trimpath -o "$cache/new.$1" \
    -ldflags "-s -w -X ${x}Version=v$kubernetes -X ${x}Major=1 -X ${x}Minor=$minor" "k8s.io/kubernetes/cmd/$1")
}

# Builds a program of another module: PACKAGE@VERSION.
build_other() { (cd / && GOFLAGS=-buildvcs=false GOBIN=$cache nice -n 19 go install -trimpath -ldflags "-s -w" "$1"); }

build_one() {
  case $1 in
  helm) build_other "helm.sh/helm/v3/cmd/helm@v$helm" ;;
  kubeconform) build_other "github.com/yannh/kubeconform/cmd/kubeconform@v$kubeconform" ;;
  *) build_kubernetes "$1" && mv "$cache/new.$1" "$cache/$1" ;;
  esac
}

programs() {
  local name
  mkdir -p "$cache"
  for name; do
    [ -x "$cache/$name" ] && continue
    command -v go >/dev/null || { echo "programs: $name is built from its Go module, and there is no go" >&2; return 1; }
    echo "programs: building $name, which takes some minutes" >&2
    build_one "$name" || return 1
  done
  PATH=$cache:$PATH
}

# Prints the folder of a Go module: MODULE@VERSION.
module() { (cd / && go mod download -json "$1" | sed -n 's/.*"Dir": "\(.*\)".*/\1/p'); }
