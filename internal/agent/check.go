package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"

	"qtls.dev/qtls/internal/haproxy"
	"qtls.dev/qtls/internal/haproxy/runtime"
)

// check has HAProxy read a tree without running it. It is a *runtime.Refusal
// when HAProxy finds fault with it.
func (a *Agent) check(ctx context.Context, tree string) error {
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	command := exec.CommandContext(ctx, a.HAProxy, "-c",
		"-f", a.trees.path(tree, haproxy.ConfigFile), "-f", a.trees.path(tree, haproxy.BackendsFile))
	command.Env = append(os.Environ(), haproxy.PKCS11Environment+"="+a.trees.path(tree, haproxy.PKCS11File))
	output, err := command.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return fmt.Errorf("haproxy -c: %w", ctx.Err())
	case errors.As(err, &exit) && exit.Exited():
		return &runtime.Refusal{Message: runtime.Message(string(output))}
	}
	return fmt.Errorf("haproxy -c: %w", err) // not found, or killed
}
