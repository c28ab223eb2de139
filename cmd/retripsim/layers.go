// Copyright the retrip authors.
// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/sim"
)

// layers declares the flags for services between the clients and the backend.
func (f *flags) layers() {
	f.IntVar(&f.layerCount, f.field("layers", "Fleet.Services"), 1, "number of layers that retry: the clients, and services with the same policy; -timeout applies to the last layer")
	f.Func("layer", "a `policy:replicas:timeout[:detached]`: a service between the clients and the backend. Give one flag per service, nearest to the clients first. "+
		"Empty parts mean: the clients' policy, one replica per caller, no timeout. A detached service continues when its caller has gone", func(text string) error {
		f.services = append(f.services, text)
		return nil
	})
	f.excludes("layers", "layer")
}

// settleLayers adds the services between the clients and the backend to s.
func (f *flags) settleLayers(s *sim.Scenario) error {
	if f.given("layers") {
		if f.layerCount < 1 || f.layerCount > 6 {
			return fmt.Errorf("-layers is %d: it must be 1 to 6", f.layerCount)
		}
		*s = s.Layered(f.layerCount - 1)
		return nil
	}
	s.Fleet.Services = nil
	for i, text := range f.services {
		service, err := f.service(text, s.Policy.Retry)
		if err != nil {
			return fmt.Errorf("-layer is %q: %w", text, err)
		}
		s.Fleet.Services = append(s.Fleet.Services, service)
		f.names[fmt.Sprintf("Fleet.Services[%d].Replicas", i)] = "layer"
		f.names[fmt.Sprintf("Fleet.Services[%d].Timeout", i)] = "layer"
	}
	return nil
}

func (f *flags) service(text string, base retrip.Policy) (service sim.Service, err error) {
	parts := strings.Split(text, ":")
	if len(parts) > 4 {
		return service, fmt.Errorf("it must be policy:replicas:timeout, with or without :detached")
	}
	parts = append(parts, "", "", "")
	if parts[0] != "" {
		policy, err := f.one(parts[0], base)
		if err != nil {
			return service, err
		}
		service.Policy = &policy
	}
	if parts[1] != "" {
		if service.Replicas, err = strconv.Atoi(parts[1]); err != nil {
			return service, fmt.Errorf("%q is not a number of replicas", parts[1])
		}
	}
	if parts[2] != "" {
		if service.Timeout, err = time.ParseDuration(parts[2]); err != nil {
			return service, fmt.Errorf("%q is not a timeout", parts[2])
		}
	}
	switch parts[3] {
	case "":
	case "detached":
		service.Detached = true
	default:
		return service, fmt.Errorf("%q must be detached or empty", parts[3])
	}
	return service, nil
}

// layerNotes describes what each layer sent in the first run of each group.
func layerNotes(groups [][]*sim.Result) []string {
	var notes []string
	for _, group := range groups {
		var parts []string
		for i, l := range group[0].Layers {
			who := "clients"
			if i > 0 {
				who = fmt.Sprintf("service %d", i)
			}
			parts = append(parts, fmt.Sprintf("%s made %.2f attempts per request, and %.0f in the worst second",
				who, float64(l.Attempts)/float64(max(1, l.Requests)), l.PeakSecond))
		}
		if parts != nil {
			notes = append(notes, group[0].Policy+": "+strings.Join(parts, "; "))
		}
	}
	return notes
}
