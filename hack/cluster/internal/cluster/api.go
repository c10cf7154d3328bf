package cluster

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"qtls.dev/qtls/hack/cluster/internal/build"
	"qtls.dev/qtls/hack/cluster/internal/pki"
)

// api is the little that this program asks of the API server itself; all else is kubectl's.
type api struct {
	url    string
	client *http.Client
}

func (c *Cluster) api(port int) (*api, error) {
	ca, err := os.ReadFile(filepath.Join(c.pkiDir(), "ca.crt"))
	if err != nil {
		return nil, err
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(ca) {
		return nil, errors.New("the cluster's CA certificate cannot be read")
	}
	file := filepath.Join(c.pkiDir(), pki.Admin)
	pair, err := tls.LoadX509KeyPair(file+".crt", file+".key")
	if err != nil {
		return nil, err
	}
	return &api{
		url: fmt.Sprintf("https://127.0.0.1:%d", port),
		client: &http.Client{
			Timeout:   5 * time.Second,
			Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, Certificates: []tls.Certificate{pair}}},
		},
	}, nil
}

// get reads a path of the API; into may be nil.
func (a *api) get(ctx context.Context, path string, into any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.url+path, nil)
	if err != nil {
		return err
	}
	resp, err := a.client.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("GET %s: %s: %s", path, resp.Status, bytes.TrimSpace(body))
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(body, into)
}

// healthy asks whether the API server is ready to serve.
func (a *api) healthy(ctx context.Context) error { return a.get(ctx, "/readyz", nil) }

// nodeReady asks whether Kubernetes says that the node is Ready.
func (a *api) nodeReady(ctx context.Context, name string) error {
	var n nodeObject
	if err := a.get(ctx, "/api/v1/nodes/"+name, &n); err != nil {
		return err
	}
	return n.ready()
}

type nodeObject struct {
	Metadata struct{ Name string }
	Status   struct {
		Conditions []struct{ Type, Status, Reason, Message string }
	}
}

func (n nodeObject) ready() error {
	for _, c := range n.Status.Conditions {
		if c.Type == "Ready" {
			if c.Status == "True" {
				return nil
			}
			return fmt.Errorf("node %s is not ready: %s: %s", n.Metadata.Name, c.Reason, c.Message)
		}
	}
	return fmt.Errorf("node %s has not reported yet", n.Metadata.Name)
}

// deploymentAvailable asks whether all wanted replicas of a Deployment are available.
func (a *api) deploymentAvailable(ctx context.Context, namespace, name string) error {
	var d struct {
		Spec   struct{ Replicas int }
		Status struct{ AvailableReplicas int }
	}
	if err := a.get(ctx, "/apis/apps/v1/namespaces/"+namespace+"/deployments/"+name, &d); err != nil {
		return err
	}
	if d.Status.AvailableReplicas < d.Spec.Replicas {
		return fmt.Errorf("deployment %s/%s: %d of %d replicas are available", namespace, name, d.Status.AvailableReplicas, d.Spec.Replicas)
	}
	return nil
}

// until repeats check until it succeeds. When time runs out the error is check's last.
func until(ctx context.Context, patience, every time.Duration, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	var last error
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		if ctx.Err() == nil || last == nil {
			last = err
		}
		select {
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return fmt.Errorf("not within %s: %w", patience, last)
			}
			return context.Cause(ctx)
		case <-time.After(every):
		}
	}
}

// kubectl runs kubectl as the administrator with stdin and returns what it printed.
func (c *Cluster) kubectl(ctx context.Context, s *state, stdin []byte, args ...string) (string, error) {
	return c.tool(ctx, filepath.Join(s.Bin, string(build.Kubectl)), stdin, args...)
}

// tool runs a program with the administrator's kubeconfig.
func (c *Cluster) tool(ctx context.Context, program string, stdin []byte, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(os.Environ(), "KUBECONFIG="+c.KubeconfigPath())
	cmd.Stdin = bytes.NewReader(stdin)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
		return "", fmt.Errorf("%s %s: %w: %s", filepath.Base(program), args[0], err, bytes.TrimSpace(errs.Bytes()))
	}
	return out.String(), nil
}
