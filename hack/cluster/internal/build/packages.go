package build

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// A tool is something that a Debian package brings.
type tool struct {
	// check says whether it is there.
	check []string
	// pkg is the Debian package.
	pkg string
}

// tools are what a group's compilation needs besides Go.
func (g group) tools() []tool {
	var t []tool
	if len(g.c) > 0 || g.cgo {
		t = append(t, tool{[]string{"gcc", "--version"}, "gcc"}, tool{[]string{"sh", "-c", "test -e /usr/include/stdio.h"}, "libc6-dev"})
	}
	if slices.Contains(strings.Split(g.tags, ","), "seccomp") {
		t = append(t, tool{[]string{"pkg-config", "--version"}, "pkg-config"}, tool{[]string{"pkg-config", "--exists", "libseccomp"}, "libseccomp-dev"})
	}
	return t
}

// CheckRuntime says whether the host has what the machines call, and else how to get it.
func CheckRuntime(proxyMode string) error {
	tools := []tool{
		{[]string{"nft", "--version"}, "nftables"}, // kube-proxy and the CNI plugin portmap
		{[]string{"mount", "--version"}, "mount"},  // the kubelet
	}
	if proxyMode == "iptables" {
		tools = append(tools, tool{[]string{"iptables", "--version"}, "iptables"})
	}
	return checkPackages(tools)
}

func checkPackages(tools []tool) error {
	var missing []string
	for _, t := range tools {
		if exec.Command(t.check[0], t.check[1:]...).Run() != nil && !slices.Contains(missing, t.pkg) {
			missing = append(missing, t.pkg)
		}
	}
	if len(missing) > 0 {
		return fmt.Errorf("missing Debian packages: %s\nInstall them with: apt-get update && apt-get install -y --no-install-recommends %s", strings.Join(missing, ", "), strings.Join(missing, " "))
	}
	return nil
}
