// Command qtls-k6 is k6 with the module k6/x/qtls compiled in. `qtls-k6 measure` measures what the operator asks for in
// the environment, `qtls-k6 session` samples a gateway that runs; all else is k6's own command line.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	k6 "go.k6.io/k6/v2/cmd"

	"qtls.dev/qtls/k6/xqtls"
)

func main() {
	// k6 would look for a build of itself that has the modules of a script, and fetch it. Here they are all in.
	_ = os.Setenv("K6_AUTO_EXTENSION_RESOLUTION", "false")
	var err error
	switch {
	case len(os.Args) == 2 && os.Args[1] == "measure":
		err = measure()
	case len(os.Args) >= 2 && os.Args[1] == "session":
		ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
		defer stop()
		err = xqtls.Session(ctx, os.Args[2:], os.Getenv, os.Stdout)
	default:
		k6.Execute()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "qtls-k6:", err)
		os.Exit(1)
	}
}

// measure runs k6 on one of our scripts. k6 ends the process by itself when it fails.
func measure() error {
	m, err := xqtls.Prepare(os.Getenv)
	if err != nil {
		return err
	}
	script, in, err := os.Pipe()
	if err != nil {
		return err
	}
	go func() {
		_, _ = io.WriteString(in, m.Script) // k6 says what it misses
		in.Close()
	}()
	os.Stdin, os.Args = script, append(os.Args[:1], m.Arguments...)
	k6.Execute()
	return xqtls.Measured()
}
