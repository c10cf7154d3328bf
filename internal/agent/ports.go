package agent

import (
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"

	"qtls.dev/qtls/internal/haproxy/runtime"
)

// bindLine is a `bind` to a TCP port, on every address or on one.
var bindLine = regexp.MustCompile(`(?m)^\s*bind\s+\S*:(\d{1,5})(\s|$)`)

// portsOf are the TCP ports that a configuration binds.
func portsOf(config string) (ports []int) {
	for _, m := range bindLine.FindAllStringSubmatch(config, -1) {
		if port, err := strconv.Atoi(m[1]); err == nil && port > 0 && port <= 65535 {
			ports = append(ports, port)
		}
	}
	slices.Sort(ports)
	return slices.Compact(ports)
}

// newPorts are those that a configuration binds and the one before does not.
func newPorts(config, before string) []int {
	held := portsOf(before)
	return slices.DeleteFunc(portsOf(config), func(port int) bool { return slices.Contains(held, port) })
}

// bindable says whether HAProxy could bind the ports now. A worker that cannot
// makes the one that serves pause, and let go of sockets that it does not get
// back: the attempt alone does harm. It is a *runtime.Refusal when one is not.
func bindable(ports []int) error {
	for _, port := range ports {
		l, err := net.Listen("tcp", ":"+strconv.Itoa(port))
		if err != nil {
			return &runtime.Refusal{Message: fmt.Sprintf("port %d cannot be bound: %v; it is tried again", port, err)}
		}
		l.Close()
	}
	return nil
}
