//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"

	corev1 "k8s.io/api/core/v1"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/remotecommand"
	utilexec "k8s.io/client-go/util/exec"
)

// ran is what a command in a container did.
type ran struct {
	code   int
	stdout string
	stderr string
}

// execIn runs a command in a container. A command that ends with another code than 0 is no error.
func execIn(ctx context.Context, namespace, pod, container string, stdin io.Reader, command ...string) (ran, error) {
	request := cluster.clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdin: stdin != nil, Stdout: true, Stderr: true}, clientgoscheme.ParameterCodec)
	executor, err := remotecommand.NewWebSocketExecutor(cluster.config, "GET", request.URL().String())
	if err != nil {
		return ran{}, err
	}
	var stdout, stderr bytes.Buffer
	err = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdin: stdin, Stdout: &stdout, Stderr: &stderr})
	r := ran{stdout: stdout.String(), stderr: stderr.String()}
	var exit utilexec.CodeExitError
	if errors.As(err, &exit) {
		r.code = exit.Code
		return r, nil
	}
	return r, err
}

// streamFrom runs a command in a container and passes on what it prints, until ctx ends.
func streamFrom(ctx context.Context, namespace, pod, container string, out io.Writer, command ...string) {
	request := cluster.clientset.CoreV1().RESTClient().Post().Resource("pods").Namespace(namespace).Name(pod).SubResource("exec").
		VersionedParams(&corev1.PodExecOptions{Container: container, Command: command, Stdout: true}, clientgoscheme.ParameterCodec)
	if executor, err := remotecommand.NewWebSocketExecutor(cluster.config, "GET", request.URL().String()); err == nil {
		_ = executor.StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: out}) // it is always cut off
	}
}
