// Command qtls-cluster builds and runs a real Kubernetes cluster on one Linux machine, from source
// and with no container registry. README.md says what it can do.
package main

import (
	"os"

	"qtls.dev/qtls/hack/cluster/internal/cli"
)

func main() {
	os.Exit(cli.Main(os.Args[1:]))
}
