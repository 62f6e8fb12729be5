#!/bin/sh
# Stands in for docker, podman, kind and kubectl: writes down how it was called, and answers as far as
# the cluster's code needs an answer. FAKE is its folder; a call that matches the pattern in FAKE/fail
# fails; each call for containers takes a line from FAKE/containers, for sandboxes from FAKE/sandboxes.
call="$(basename "$0") $*"
echo "$call" >> "$FAKE/log"

next() {
  head -n 1 "$1" 2>/dev/null
  [ ! -e "$1" ] || sed -i 1d "$1"
}

if [ -e "$FAKE/fail" ]; then
  read -r pattern < "$FAKE/fail"
  # shellcheck disable=SC2254
  case "$call" in $pattern) echo "told to fail" >&2; exit 1 ;; esac
fi
case "$call" in
  *" nft -f -") cat >> "$FAKE/rules" ;;
  "kind create "*) cat > "$FAKE/config" ;;
  "docker info "* | "podman info "*) echo 1 ;;
  *" inspect "*) echo 172.18.0.4 ;;
  *" cp "*:/usr/bin/kubectl*) for target; do :; done; cp "$0" "$target" ;;
  *" save -o "*) echo archive > "$4" ;;
  *" crictl ps "*) next "$FAKE/containers" ;;
  *" crictl pods "*) next "$FAKE/sandboxes" ;;
  "kubectl "*"get nodes"*) echo "holdfast-control-plane=True holdfast-worker=True holdfast-worker2=True" ;;
esac
exit 0
