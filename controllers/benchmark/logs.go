package benchmark

import (
	"context"
	"io"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"
)

// lastLines of a log are read: the result is among the last of them.
const lastLines = 200

// PodLogs reads logs through the API server.
func PodLogs(config *rest.Config) (func(ctx context.Context, namespace, pod, container string) (io.ReadCloser, error), error) {
	c, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context, namespace, pod, container string) (io.ReadCloser, error) {
		return c.CoreV1().Pods(namespace).GetLogs(pod, &corev1.PodLogOptions{
			Container: container, TailLines: ptr.To[int64](lastLines), LimitBytes: ptr.To[int64](mostLog),
		}).Stream(ctx)
	}, nil
}
