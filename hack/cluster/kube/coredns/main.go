// Command coredns is CoreDNS with the plugins that a cluster's DNS needs. The upstream command
// registers every plugin and with them three cloud SDKs, which take longer to compile than
// everything else here.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/metrics"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
)

func main() {
	// The order is that of CoreDNS's own plugin.cfg: a query passes through the plugins in it.
	dnsserver.Directives = []string{"reload", "ready", "health", "prometheus", "errors", "cache", "kubernetes"}
	coremain.Run()
}
