// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// programs are what is weighed: each imports one library, and makes a request with the
// library's defaults. The first is the reference.
var programs = []struct{ peer, library, main string }{
	{"bare", "", `fmt.Println((&http.Client{}).Get(url))`},
	{"retrip", "github.com/retrip/retrip", `fmt.Println((&http.Client{Transport: &retrip.Transport{}}).Get(url))`},
	{"rehttp", "github.com/PuerkitoBio/rehttp",
		`fmt.Println((&http.Client{Transport: rehttp.NewTransport(nil, rehttp.RetryMaxRetries(3), rehttp.ConstDelay(0))}).Get(url))`},
	{"httpretry", "github.com/ybbus/httpretry", `fmt.Println(httpretry.NewDefaultClient().Get(url))`},
	{"failsafe-go", "github.com/failsafe-go/failsafe-go/failsafehttp",
		`retries := failsafehttp.NewRetryPolicyBuilder().Build(); ` +
			`fmt.Println((&http.Client{Transport: failsafehttp.NewRoundTripper(nil, retries)}).Get(url))`},
	{"go-retryablehttp", "github.com/hashicorp/go-retryablehttp", `fmt.Println(retryablehttp.NewClient().Get(url))`},
	{"heimdall", "github.com/gojek/heimdall/v7/httpclient", `fmt.Println(httpclient.NewClient().Get(url, nil))`},
}

// weight is the size of a program.
type weight struct {
	Peer            string
	Plain, Stripped int64 // bytes, as go build leaves it and with -ldflags="-s -w"
}

// weigh builds the programs.
func weigh() (all []weight, err error) {
	// The programs must be in this module; "..." doesn't match the name.
	dir, err := os.MkdirTemp(".", "_weight-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	for _, p := range programs {
		source := "package main\n\nimport \"fmt\"\nimport \"net/http\"\n"
		if p.library != "" {
			source += fmt.Sprintf("import %q\n", p.library)
		}
		source += "\nvar _ http.Client\n\nconst url = \"http://127.0.0.1:1/\"\n\nfunc main() { " + p.main + " }\n"
		if err := os.WriteFile(filepath.Join(dir, "main.go"), []byte(source), 0o600); err != nil {
			return nil, err
		}
		w := weight{Peer: p.peer}
		if w.Plain, err = built(dir, ""); err != nil {
			return nil, err
		}
		if w.Stripped, err = built(dir, "-s -w"); err != nil {
			return nil, err
		}
		all = append(all, w)
	}
	return all, nil
}

// built returns the size of the program in dir.
func built(dir, ldflags string) (int64, error) {
	binary := filepath.Join(dir, "program")
	out, err := exec.Command("go", "build", "-trimpath", "-buildvcs=false", "-ldflags="+ldflags, "-o", binary, "./"+dir).CombinedOutput()
	if err != nil {
		return 0, fmt.Errorf("%w\n%s", err, out)
	}
	info, err := os.Stat(binary)
	if err != nil {
		return 0, err
	}
	return info.Size(), nil
}

// grown returns by how many MB the library of a peer makes a program larger.
func (r *results) grown(peer string) (stripped, plain float64, ok bool) {
	for _, w := range r.Weights {
		if w.Peer == peer {
			bare := r.Weights[0]
			return float64(w.Stripped-bare.Stripped) / 1e6, float64(w.Plain-bare.Plain) / 1e6, true
		}
	}
	return 0, 0, false
}
