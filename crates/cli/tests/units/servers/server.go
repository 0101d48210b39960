// SPDX-License-Identifier: Apache-2.0
// Answers each request with a digest of a list that it makes, sorts, prints and parses.
package main

import (
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"sort"
)

type item struct {
	ID   int    `json:"id"`
	Name string `json:"name"`
	Tags []int  `json:"tags"`
}

var number = regexp.MustCompile(`name (\d+)`)

func work() (string, error) {
	var list, again []item
	for i := 0; i < 400; i++ {
		list = append(list, item{i * 7919 % 1009, fmt.Sprintf("name %d", i), []int{i, i * 2}})
	}
	sort.Slice(list, func(a, b int) bool { return list[a].ID < list[b].ID })
	text, err := json.Marshal(list)
	if err != nil {
		return "", err
	}
	if err := json.Unmarshal(text, &again); err != nil {
		return "", err
	}
	short := number.ReplaceAllString(fmt.Sprint(again), "n$1")
	return fmt.Sprintf("%x\n", sha256.Sum256([]byte(short))), nil
}

func main() {
	http.HandleFunc("/", func(answer http.ResponseWriter, _ *http.Request) {
		text, err := work()
		if err != nil {
			http.Error(answer, err.Error(), http.StatusInternalServerError)
			return
		}
		fmt.Fprint(answer, text)
	})
	fmt.Println(http.ListenAndServe("127.0.0.1:8003", nil))
}
